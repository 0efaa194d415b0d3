// sdk-go's answers to conformance cases: what spec-fixtures/README.md calls a program for --exec.
//
//	answer nats         the protocol nats/v2
//	answer jetstream    the protocol nats_jetstream/v2
//
// What travels is made by WriteMsg and read by NewMessage, binding.ToEvent and Validate, as sdk-go's own client does it.
// Nothing is mended here: values are spelled out, sdk-go is called, and what it gave is spelled again.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	corenats "github.com/cloudevents/sdk-go/protocol/nats/v2"
	jetstream "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/nats-io/nats.go"
)

type object = map[string]any

type question struct {
	ID    string          `json:"id"`
	Op    string          `json:"op"`
	Input json.RawMessage `json:"input"`
}

// skip is the error of a case that cannot be put to sdk-go.
type skip string

func (s skip) Error() string { return string(s) }

const (
	noBinary  = skip("there is no binary mode")
	noOptions = skip("sdk-go has no such option")
)

// dialect is one of the two protocols.
type dialect struct {
	hasBinary bool
	read      func(*nats.Msg) binding.Message
	write     func(context.Context, binding.Message, *bytes.Buffer) (nats.Header, error)
}

var dialects = map[string]dialect{
	"nats": {
		read: func(msg *nats.Msg) binding.Message { return corenats.NewMessage(msg) },
		write: func(ctx context.Context, m binding.Message, payload *bytes.Buffer) (nats.Header, error) {
			return nil, corenats.WriteMsg(ctx, m, payload)
		},
	},
	"jetstream": {
		hasBinary: true,
		read:      func(msg *nats.Msg) binding.Message { return jetstream.NewMessage(msg) },
		write: func(ctx context.Context, m binding.Message, payload *bytes.Buffer) (nats.Header, error) {
			return jetstream.WriteMsg(ctx, m, payload)
		},
	},
}

func main() {
	spoken, known := dialects[os.Args[len(os.Args)-1]]
	if !known {
		panic("want one argument, nats or jetstream")
	}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked question
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		answer := spoken.steadyAnswer(asked)
		answer["id"] = asked.ID
		printed, err := json.Marshal(answer)
		must(err)
		os.Stdout.Write(append(printed, '\n'))
	}
}

// steadyAnswer asks several times: sdk-go goes through headers in the order of a Go map, which is another one each time.
// Where that makes a difference, there is no answer.
func (d dialect) steadyAnswer(asked question) object {
	first := d.answer(asked)
	if asked.Op != "from_nats_message" {
		return first
	}
	for range 30 {
		again := d.answer(asked)
		if first["result"] == nil && again["result"] == nil {
			continue
		}
		one, _ := json.Marshal(first["result"])
		other, _ := json.Marshal(again["result"])
		if !bytes.Equal(one, other) {
			return object{"unsteady": true}
		}
	}
	return first
}

// answer is a result, an error, a reason to skip, or "crashed", which is no answer and fails the case.
func (d dialect) answer(asked question) (given object) {
	defer func() {
		if crash := recover(); crash != nil {
			given = object{"crashed": fmt.Sprint(crash)}
		}
	}()
	operations := map[string]func(json.RawMessage) (object, error){
		"attributes.canonical": canonical,
		"attributes.timestamp": timestamp,
		"detect_mode":          d.detectMode,
		"from_nats_message":    d.fromMessage,
		"to_nats_message":      d.toMessage,
	}
	operation, known := operations[asked.Op]
	if !known {
		return object{"skipped": "sdk-go has no " + asked.Op}
	}
	result, err := operation(asked.Input)
	var skipped skip
	if errors.As(err, &skipped) {
		return object{"skipped": string(skipped)}
	}
	if err != nil {
		return object{"error": err.Error()}
	}
	return object{"result": result}
}

// --- Attributes ---

func canonical(input json.RawMessage) (object, error) {
	var given struct {
		Type  string
		Value json.RawMessage
	}
	must(json.Unmarshal(input, &given))
	value, err := native(given.Type, given.Value)
	if err != nil {
		return nil, err
	}
	text, err := types.Format(value)
	return object{"text": text}, err
}

func timestamp(input json.RawMessage) (object, error) {
	var given struct{ Text json.RawMessage }
	must(json.Unmarshal(input, &given))
	text, err := spelledText(given.Text)
	if err != nil {
		return nil, err
	}
	parsed, err := types.ParseTime(text)
	if err != nil {
		return nil, err
	}
	instant := parsed.UTC().Format("2006-01-02T15:04:05.000000Z")
	return object{"text": types.FormatTime(parsed), "instant": instant}, nil
}

// native is the Go value of a canonical string, or of what JSON has for it.
func native(kind string, spelled json.RawMessage) (any, error) {
	text := strings.Trim(string(spelled), `"`)
	switch kind {
	case "Boolean":
		return text == "true", nil
	case "Integer":
		// Of more than 64 bits there is no Go value; sdk-go's own parser says so.
		if number, err := strconv.ParseInt(text, 10, 64); err == nil {
			return number, nil
		}
		return types.ParseInteger(text)
	case "Binary":
		return base64.StdEncoding.DecodeString(text)
	}
	text, err := spelledText(spelled)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "Timestamp":
		parsed, err := types.ParseTime(text)
		return types.Timestamp{Time: parsed}, err
	case "URI":
		if parsed := types.ParseURI(text); parsed != nil {
			return *parsed, nil
		}
		return nil, fmt.Errorf("no URI: %q", text)
	case "URI-reference":
		if parsed := types.ParseURIRef(text); parsed != nil {
			return *parsed, nil
		}
		return nil, fmt.Errorf("no URI reference: %q", text)
	}
	return text, nil
}

func tagged(kind, value string) object { return object{"type": kind, "value": value} }

func taggedValue(value any) (object, error) {
	kind := "String"
	switch value.(type) {
	case bool:
		kind = "Boolean"
	case int32:
		kind = "Integer"
	case []byte:
		kind = "Binary"
	case types.Timestamp:
		kind = "Timestamp"
	}
	text, err := types.Format(value)
	return tagged(kind, text), err
}

// --- From a message ---

type messageInput struct {
	Headers *[][2]json.RawMessage
	Data    json.RawMessage
	Mode    string
	Dialect string
	Parse   *bool             `json:"parse_data"`
	Types   map[string]string `json:"extension_types"`
}

func (d dialect) message(input json.RawMessage) (messageInput, *nats.Msg, error) {
	var given messageInput
	must(json.Unmarshal(input, &given))
	msg := &nats.Msg{Subject: "s"}
	if given.Data != nil {
		data, err := spelledBytes(given.Data)
		if err != nil {
			return given, nil, err
		}
		msg.Data = data
	}
	if given.Headers == nil {
		return given, msg, nil
	}
	header, err := received(*given.Headers)
	msg.Header = header
	return given, msg, err
}

// received is what nats.go makes of headers on the wire.
func received(pairs [][2]json.RawMessage) (nats.Header, error) {
	block := strings.Builder{}
	block.WriteString("NATS/1.0\r\n")
	for _, pair := range pairs {
		name, err := spelledText(pair[0])
		if err != nil {
			return nil, err
		}
		value, err := spelledText(pair[1])
		if err != nil {
			return nil, err
		}
		if strings.ContainsAny(name+value, "\r\n") {
			return nil, skip("no header on the wire holds CR or LF")
		}
		block.WriteString(name + ": " + value + "\r\n")
	}
	block.WriteString("\r\n")
	if len(pairs) == 0 {
		return nats.Header{}, nil
	}
	return nats.DecodeHeadersMsg([]byte(block.String()))
}

func (d dialect) detectMode(input json.RawMessage) (object, error) {
	_, msg, err := d.message(input)
	if err != nil {
		return nil, err
	}
	if !d.hasBinary {
		return nil, noBinary
	}
	return object{"mode": d.read(msg).ReadEncoding().String()}, nil
}

func (d dialect) fromMessage(input json.RawMessage) (object, error) {
	given, msg, err := d.message(input)
	if err != nil {
		return nil, err
	}
	if given.Mode != "" {
		return nil, noOptions
	}
	if !d.hasBinary && isBinary(msg.Header) {
		return nil, noBinary
	}
	message := d.read(msg)
	received, err := binding.ToEvent(context.Background(), message)
	if err != nil {
		return nil, err
	}
	if err := received.Validate(); err != nil {
		return nil, err
	}
	attributes, err := attributesOf(received, given.Types)
	if err != nil {
		return nil, err
	}
	raw := given.Parse != nil && !*given.Parse
	data, err := dataOf(received, raw, message.ReadEncoding() == binding.EncodingBinary)
	return object{"attributes": attributes, "data": data}, err
}

// isBinary says whether a message is none for a protocol without binary mode; a case of it tests something else.
func isBinary(header nats.Header) bool {
	binary := false
	for name, values := range header {
		if strings.EqualFold(name, "content-type") && strings.HasPrefix(strings.ToLower(values[0]), "application/cloudevents") {
			return false
		}
		binary = binary || strings.HasPrefix(strings.ToLower(name), "ce-")
	}
	return binary
}

func attributesOf(received *event.Event, declared map[string]string) (object, error) {
	attributes := object{}
	for name, text := range map[string]string{
		"specversion":     received.SpecVersion(),
		"id":              received.ID(),
		"source":          received.Source(),
		"type":            received.Type(),
		"subject":         received.Subject(),
		"dataschema":      received.DataSchema(),
		"datacontenttype": received.DataContentType(),
	} {
		if text != "" {
			attributes[name] = tagged("String", text)
		}
	}
	if !received.Time().IsZero() {
		attributes["time"] = tagged("Timestamp", received.Time().Format(time.RFC3339Nano))
	}
	for name, value := range received.Extensions() {
		value, err := converted(value, declared[name])
		if err != nil {
			return nil, err
		}
		if attributes[name], err = taggedValue(value); err != nil {
			return nil, err
		}
	}
	return attributes, nil
}

// converted is what sdk-go's own conversion makes of an extension whose type the application knows.
func converted(value any, kind string) (any, error) {
	switch kind {
	case "Boolean":
		return types.ToBool(value)
	case "Integer":
		return types.ToInteger(value)
	case "Binary":
		return types.ToBinary(value)
	case "Timestamp":
		converted, err := types.ToTime(value)
		return types.Timestamp{Time: converted}, err
	}
	return value, nil
}

// dataOf asks for the data in the form that its type is for: JSON with DataAs, text as a string, the rest as bytes.
func dataOf(received *event.Event, raw, binary bool) (object, error) {
	data := received.Data()
	if data == nil {
		return object{"absent": true}, nil
	}
	kind := dataKind(received.DataContentType(), binary)
	switch {
	case raw || kind == "bytes" || kind == "text" && !utf8.Valid(data):
		return object{"base64": base64.StdEncoding.EncodeToString(data)}, nil
	case kind == "text":
		return object{"text": string(data)}, nil
	}
	var parsed json.RawMessage
	if err := received.DataAs(&parsed); err != nil {
		return nil, err
	}
	if !utf8.Valid(parsed) {
		return object{"base64": base64.StdEncoding.EncodeToString(parsed)}, nil
	}
	return object{"json": parsed}, nil
}

func dataKind(contentType string, binary bool) string {
	if contentType == "" {
		if binary {
			return "bytes"
		}
		return "json"
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil && mediaType == "" {
		mediaType = strings.ToLower(strings.TrimSpace(strings.SplitN(contentType, ";", 2)[0]))
	}
	switch {
	case mediaType == "application/json", mediaType == "text/json", strings.HasSuffix(mediaType, "+json"):
		return "json"
	case strings.HasPrefix(mediaType, "text/"), mediaType == "application/xml", strings.HasSuffix(mediaType, "+xml"):
		return "text"
	}
	return "bytes"
}

// --- To a message ---

type eventInput struct {
	Event struct {
		Attributes map[string]struct {
			Type   string
			Value  json.RawMessage
			Native json.RawMessage
		}
		Data json.RawMessage
	}
	Mode    string
	Subject json.RawMessage
	Reply   json.RawMessage
	Headers json.RawMessage
}

func (d dialect) toMessage(input json.RawMessage) (object, error) {
	var given eventInput
	must(json.Unmarshal(input, &given))
	if given.Subject != nil || given.Reply != nil || given.Headers != nil {
		return nil, noOptions
	}
	structured := given.Mode == "structured"
	if !structured && !d.hasBinary {
		return nil, noBinary
	}
	outgoing, err := eventOf(given)
	if err != nil {
		return nil, err
	}
	if err := outgoing.Validate(); err != nil {
		return nil, err
	}
	ctx := context.Background()
	if structured {
		ctx = binding.WithForceStructured(ctx)
	} else if given.Mode == "binary" {
		ctx = binding.WithForceBinary(ctx)
	}
	var payload bytes.Buffer
	header, err := d.write(ctx, binding.ToMessage(outgoing), &payload)
	if err != nil {
		return nil, err
	}
	pairs := [][2]string{}
	for name, values := range header {
		for _, value := range values {
			pairs = append(pairs, [2]string{name, value})
		}
	}
	if !structured {
		return object{"headers": pairs, "data": object{"base64": base64.StdEncoding.EncodeToString(payload.Bytes())}}, nil
	}
	if !json.Valid(payload.Bytes()) {
		panic("what was written is not JSON")
	}
	return object{"headers": pairs, "json": json.RawMessage(payload.Bytes())}, nil
}

func eventOf(given eventInput) (*event.Event, error) {
	outgoing := event.New()
	contentType := ""
	for name, attribute := range given.Event.Attributes {
		if attribute.Native != nil {
			if err := setNative(&outgoing, name, attribute.Native); err != nil {
				return nil, err
			}
			continue
		}
		text, err := spelledText(attribute.Value)
		if err != nil {
			return nil, err
		}
		switch name {
		case "specversion":
			outgoing.SetSpecVersion(text)
		case "id":
			outgoing.SetID(text)
		case "source":
			outgoing.SetSource(text)
		case "type":
			outgoing.SetType(text)
		case "subject":
			outgoing.SetSubject(text)
		case "dataschema":
			outgoing.SetDataSchema(text)
		case "datacontenttype":
			contentType = text
			outgoing.SetDataContentType(text)
		case "time":
			parsed, err := types.ParseTime(text)
			if err != nil {
				return nil, err
			}
			outgoing.SetTime(parsed)
		default:
			value, err := native(attribute.Type, attribute.Value)
			if err != nil {
				return nil, err
			}
			outgoing.SetExtension(name, value)
		}
	}
	return &outgoing, setData(&outgoing, contentType, given.Event.Data)
}

func setNative(outgoing *event.Event, name string, spelled json.RawMessage) error {
	var value any
	must(json.Unmarshal(spelled, &value))
	switch name {
	case "specversion", "id", "source", "type", "subject", "dataschema", "datacontenttype", "time":
		if value == nil {
			return nil
		}
		return skip("Go's types do not let this attribute be anything else")
	}
	outgoing.SetExtension(name, value)
	return nil
}

func setData(outgoing *event.Event, contentType string, spelled json.RawMessage) error {
	var form map[string]json.RawMessage
	must(json.Unmarshal(spelled, &form))
	switch {
	case form["absent"] != nil:
		return nil
	case form["json"] != nil:
		// SetData() asks for a type, and JSON is the one of a value.
		if contentType == "" {
			contentType = event.ApplicationJSON
		}
		return outgoing.SetData(contentType, form["json"])
	case form["text"] != nil:
		text, err := spelledText(form["text"])
		if err != nil {
			return err
		}
		if contentType == "" {
			contentType = event.ApplicationJSON
		}
		return outgoing.SetData(contentType, text)
	}
	data, err := spelledBytes(spelled)
	if err != nil {
		return err
	}
	return outgoing.SetData(contentType, data)
}

// --- Spellings ---

func spelledText(spelled json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(spelled, &text) == nil {
		return text, nil
	}
	var units struct{ Utf16 string }
	if json.Unmarshal(spelled, &units) != nil {
		return "", skip("Go's types do not let a string be anything else")
	}
	octets, err := hex.DecodeString(strings.ReplaceAll(units.Utf16, " ", ""))
	must(err)
	var found []uint16
	for i := 0; i < len(octets); i += 2 {
		found = append(found, uint16(octets[i])<<8|uint16(octets[i+1]))
	}
	decoded := string(utf16.Decode(found))
	if strings.ContainsRune(decoded, utf8.RuneError) {
		return "", skip("a Go string in UTF-8 cannot hold a lone surrogate")
	}
	return decoded, nil
}

func spelledBytes(spelled json.RawMessage) ([]byte, error) {
	var form map[string]json.RawMessage
	must(json.Unmarshal(spelled, &form))
	if form["base64"] != nil {
		var text string
		must(json.Unmarshal(form["base64"], &text))
		return base64.StdEncoding.DecodeString(text)
	}
	text, err := spelledText(form["text"])
	return []byte(text), err
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
