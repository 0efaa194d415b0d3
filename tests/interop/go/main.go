// The sdk-go side of the tests: one process sends events, or receives them, over one of sdk-go's NATS protocols.
//
//	peer send    PROTOCOL MODE URL STREAM SUBJECT        events from standard input
//	peer receive PROTOCOL COUNT URL STREAM SUBJECT       events to standard output, and {"ready":true} before them
//
// Events are JSON lines. PROTOCOL is nats, jetstream, stan or protobuf, MODE binary, structured or protobuf. STREAM is not
// looked at with nats and protobuf, and the cluster id with stan.
//
// None of sdk-go's NATS protocols says what format a structured event has, or asks. PROTOCOL protobuf is nats.go with a
// Content-Type header, and sdk-go for the payload; MODE protobuf is what sdk-go's own protocols make of that format.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	protobuf "github.com/cloudevents/sdk-go/binding/format/protobuf/v2"
	corenats "github.com/cloudevents/sdk-go/protocol/nats/v2"
	jetstream "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	cestan "github.com/cloudevents/sdk-go/protocol/stan/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/protocol"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/stan.go"
)

// How long the receiver waits for all its events before it gives up.
const patience = 20 * time.Second

// outgoing is an event to be sent. Extensions have a type in sdk-go; JSON has no bytes and no timestamps.
type outgoing struct {
	Event event.Event       `json:"event"`
	Types map[string]string `json:"types"`
}

// incoming is a message that was received: the attributes as canonical strings and the data as bytes, or an error.
type incoming struct {
	Attributes map[string]string `json:"attributes,omitempty"`
	Data       []byte            `json:"data"`
	Error      string            `json:"error,omitempty"`
}

type receiver interface {
	protocol.Opener
	protocol.Receiver
}

func main() {
	if len(os.Args) != 7 {
		fail(fmt.Errorf("want 6 arguments, not %d", len(os.Args)-1))
	}
	protocolName, detail, url, stream, subject := os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]
	conn, err := nats.Connect(url)
	fail(err)
	defer conn.Close()
	switch os.Args[1] {
	case "send":
		fail(send(conn, protocolName, detail, stream, subject))
	case "receive":
		count, err := strconv.Atoi(detail)
		fail(err)
		fail(receive(conn, protocolName, count, stream, subject))
	default:
		fail(fmt.Errorf("unknown command %q", os.Args[1]))
	}
}

func send(conn *nats.Conn, protocolName, mode, stream, subject string) error {
	sender, closeSender, err := newSender(conn, protocolName, stream, subject)
	if err != nil {
		return err
	}
	ctx := binding.WithForceStructured(context.Background())
	if mode == "binary" {
		ctx = binding.WithForceBinary(context.Background())
	}
	if mode == "protobuf" {
		ctx = binding.UseFormatForEvent(ctx, protobuf.Protobuf)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var line outgoing
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return err
		}
		if err := setTypes(&line); err != nil {
			return err
		}
		if err := sender.Send(ctx, binding.ToMessage(&line.Event)); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return closeSender()
}

func newSender(conn *nats.Conn, protocolName, stream, subject string) (protocol.Sender, func() error, error) {
	switch protocolName {
	case "jetstream":
		sender, err := jetstream.NewSenderFromConn(conn, stream, subject, nil)
		return sender, conn.Flush, err
	case "stan":
		streaming, err := connectStreaming(conn, stream)
		if err != nil {
			return nil, nil, err
		}
		sender, err := cestan.NewSenderFromConn(streaming, subject)
		return sender, streaming.Close, err
	case "protobuf":
		return formatSender{conn, subject}, conn.Flush, nil
	}
	sender, err := corenats.NewSenderFromConn(conn, subject)
	return sender, conn.Flush, err
}

func connectStreaming(conn *nats.Conn, cluster string) (stan.Conn, error) {
	return stan.Connect(cluster, fmt.Sprintf("peer-%d", os.Getpid()), stan.NatsConn(conn))
}

func setTypes(line *outgoing) error {
	for name, kind := range line.Types {
		value, err := typed(kind, line.Event.Extensions()[name])
		if err != nil {
			return err
		}
		line.Event.SetExtension(name, value)
	}
	return line.Event.Validate()
}

func typed(kind string, value interface{}) (interface{}, error) {
	switch kind {
	case "bytes":
		return types.ToBinary(value)
	case "timestamp":
		return types.ToTime(value)
	}
	return nil, fmt.Errorf("unknown type %q", kind)
}

func receive(conn *nats.Conn, protocolName string, count int, stream, subject string) error {
	ready := func() error {
		if err := conn.Flush(); err != nil {
			return err
		}
		return print(map[string]bool{"ready": true})
	}
	consumer, closeReceiver, err := newReceiver(conn, protocolName, stream, subject, ready)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		err := consumer.OpenInbound(ctx)
		cancel()
		opened <- err
	}()
	for range count {
		message, err := consumer.Receive(ctx)
		if err != nil {
			cancel()
			return fmt.Errorf("%w (%v)", err, <-opened)
		}
		if err := print(read(ctx, message)); err != nil {
			return err
		}
	}
	cancel()
	if err := <-opened; err != nil {
		return err
	}
	return closeReceiver()
}

func newReceiver(
	conn *nats.Conn, protocolName, stream, subject string, ready func() error,
) (receiver, func() error, error) {
	switch protocolName {
	case "jetstream":
		announced := func(consumer *jetstream.Consumer) error {
			consumer.Subscriber = streamSubscriber{ready}
			return nil
		}
		consumer, err := jetstream.NewConsumerFromConn(conn, stream, subject, nil, nil, announced)
		return consumer, conn.Flush, err
	case "stan":
		streaming, err := connectStreaming(conn, stream)
		if err != nil {
			return nil, nil, err
		}
		all := cestan.WithSubscriptionOptions(
			stan.DeliverAllAvailable(), stan.SetManualAckMode(), stan.DurableName("peer"),
		)
		announced := func(consumer *cestan.Consumer) error {
			consumer.Subscriber = streamingSubscriber{ready}
			return nil
		}
		consumer, err := cestan.NewConsumerFromConn(streaming, subject, all, announced)
		return consumer, streaming.Close, err
	case "protobuf":
		consumer, err := newFormatReceiver(conn, subject, ready)
		return consumer, conn.Flush, err
	}
	announced := func(consumer *corenats.Consumer) error {
		consumer.Subscriber = subscriber{ready}
		return nil
	}
	consumer, err := corenats.NewConsumerFromConn(conn, subject, announced)
	return consumer, conn.Flush, err
}

// subscriber subscribes as sdk-go does, and says when it has.
type subscriber struct{ ready func() error }

func (s subscriber) Subscribe(conn *nats.Conn, subject string, handler nats.MsgHandler) (*nats.Subscription, error) {
	subscription, err := (&corenats.RegularSubscriber{}).Subscribe(conn, subject, handler)
	if err != nil {
		return nil, err
	}
	return subscription, s.ready()
}

type streamSubscriber struct{ ready func() error }

func (s streamSubscriber) Subscribe(
	js nats.JetStreamContext, subject string, handler nats.MsgHandler, options ...nats.SubOpt,
) (*nats.Subscription, error) {
	subscription, err := (&jetstream.RegularSubscriber{}).Subscribe(js, subject, handler, options...)
	if err != nil {
		return nil, err
	}
	return subscription, s.ready()
}

type streamingSubscriber struct{ ready func() error }

func (s streamingSubscriber) Subscribe(
	conn stan.Conn, subject string, handler stan.MsgHandler, options ...stan.SubscriptionOption,
) (stan.Subscription, error) {
	subscription, err := (&cestan.RegularSubscriber{}).Subscribe(conn, subject, handler, options...)
	if err != nil {
		return nil, err
	}
	return subscription, s.ready()
}

// formatSender sends events in sdk-go's Protobuf format, with the header that says so.
type formatSender struct {
	conn    *nats.Conn
	subject string
}

func (s formatSender) Send(ctx context.Context, message binding.Message, _ ...binding.Transformer) error {
	sent, err := binding.ToEvent(ctx, message)
	if err != nil {
		return err
	}
	payload, err := protobuf.Protobuf.Marshal(sent)
	if err != nil {
		return err
	}
	header := nats.Header{"Content-Type": {protobuf.Protobuf.MediaType()}}
	return s.conn.PublishMsg(&nats.Msg{Subject: s.subject, Header: header, Data: payload})
}

// formatReceiver receives structured events in the format that the Content-Type names.
type formatReceiver struct{ subscription *nats.Subscription }

func newFormatReceiver(conn *nats.Conn, subject string, ready func() error) (*formatReceiver, error) {
	subscription, err := conn.SubscribeSync(subject)
	if err != nil {
		return nil, err
	}
	return &formatReceiver{subscription}, ready()
}

func (r *formatReceiver) OpenInbound(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (r *formatReceiver) Receive(ctx context.Context) (binding.Message, error) {
	message, err := r.subscription.NextMsgWithContext(ctx)
	if err != nil {
		return nil, err
	}
	known := format.Lookup(message.Header.Get("Content-Type"))
	if known == nil {
		return nil, errors.New("the Content-Type names no format")
	}
	received := event.New()
	if err := known.Unmarshal(message.Data, &received); err != nil {
		return nil, err
	}
	return binding.ToMessage(&received), nil
}

// read does what sdk-go's client does with a message before it calls the application.
func read(ctx context.Context, message binding.Message) (result incoming) {
	received, err := binding.ToEvent(ctx, message)
	if err == nil {
		err = received.Validate()
	}
	finished := message.Finish(err)
	if err == nil {
		err = finished
	}
	if err != nil {
		return incoming{Error: err.Error()}
	}
	attributes, err := attributesOf(received)
	if err != nil {
		return incoming{Error: err.Error()}
	}
	return incoming{Attributes: attributes, Data: received.Data()}
}

func attributesOf(received *event.Event) (map[string]string, error) {
	attributes := map[string]string{
		"specversion":     received.SpecVersion(),
		"id":              received.ID(),
		"source":          received.Source(),
		"type":            received.Type(),
		"subject":         received.Subject(),
		"dataschema":      received.DataSchema(),
		"datacontenttype": received.DataContentType(),
	}
	for name, value := range attributes {
		if value == "" {
			delete(attributes, name)
		}
	}
	if !received.Time().IsZero() {
		attributes["time"] = received.Time().Format(time.RFC3339Nano)
	}
	for name, value := range received.Extensions() {
		text, err := types.Format(value)
		if err != nil {
			return nil, err
		}
		attributes[name] = text
	}
	return attributes, nil
}

// print writes a line at once, so that lines of two goroutines do not mix.
func print(value interface{}) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(append(line, '\n'))
	return err
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
