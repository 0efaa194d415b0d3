// The JavaScript side of the tests: nats.js carries what HTTP.structured() of the cloudevents package makes of an event.
//
//   node peer.mjs send    nats structured URL STREAM SUBJECT    events from standard input
//   node peer.mjs receive nats COUNT URL STREAM SUBJECT         {"ready":true}, then events to standard output
//
// Events are JSON lines; the command line is that of ../go/main.go.
import { createInterface } from "node:readline";
import { connect, headers } from "@nats-io/transport-node";
import { CloudEvent, HTTP } from "cloudevents";

const [command, , count, url, , subject] = process.argv.slice(2);
const connection = await connect({ servers: url });

const commands = {
  async send() {
    for await (const line of createInterface({ input: process.stdin })) {
      const { headers: fields, body } = HTTP.structured(new CloudEvent(JSON.parse(line).event));
      const messageHeaders = headers();
      for (const [name, value] of Object.entries(fields)) messageHeaders.set(name, value);
      connection.publish(subject, body, { headers: messageHeaders });
    }
  },
  async receive() {
    const subscription = connection.subscribe(subject, { max: Number(count) });
    await connection.flush();
    print({ ready: true });
    for await (const message of subscription) print(read(message));
  },
};

function read(message) {
  try {
    // The package looks for lower-case names; nats.js keeps the case.
    const fields = {};
    for (const [name, values] of message.headers ?? []) fields[name.toLowerCase()] = values[0];
    return described(HTTP.toEvent({ headers: fields, body: message.string() }));
  } catch (error) {
    return { data: null, error: String(error.message) };
  }
}

function described(event) {
  const { data, data_base64: base64, ...attributes } = event;
  const known = Object.entries(attributes).filter(([, value]) => value !== undefined);
  return {
    attributes: Object.fromEntries(known.map(([name, value]) => [name, String(value)])),
    data: base64 ?? (data === undefined ? null : bytesOf(data, event.datacontenttype).toString("base64")),
  };
}

// Text that is not JSON is itself; everything else is a JSON value.
function bytesOf(data, contentType) {
  const isText = typeof data === "string" && contentType !== undefined && !contentType.includes("json");
  return Buffer.from(isText ? data : JSON.stringify(data));
}

function print(value) {
  console.log(JSON.stringify(value));
}

await commands[command]();
await connection.drain();
