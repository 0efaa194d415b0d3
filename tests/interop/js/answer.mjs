// Answers of the cloudevents package to conformance cases: what spec-fixtures/README.md calls a program for --exec.
//
// The package has no NATS binding. Its HTTP binding is what there is for headers and a body, and nats.js carries those:
// HTTP.binary() and HTTP.structured() write, HTTP.toEvent() and validate() read. Nothing is mended here.
import { createInterface } from "node:readline";
import { headers as natsHeaders } from "@nats-io/transport-node";
import { CloudEvent, HTTP } from "cloudevents";

class Skipped extends Error {}

const operations = { from_nats_message: fromMessage, to_nats_message: toMessage };

createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, op, input } = JSON.parse(line);
  process.stdout.write(JSON.stringify({ id, ...answer(op, input) }) + "\n");
});

function answer(op, input) {
  if (!(op in operations)) return { skipped: `cloudevents has no ${op}` };
  try {
    return { result: operations[op](input) };
  } catch (error) {
    return error instanceof Skipped ? { skipped: error.message } : { error: String(error) };
  }
}

// --- From a message ---

function fromMessage({ headers, data = { text: "" }, ...options }) {
  if (options.mode || options.extension_types || options.parse_data === false || options.dialect === "sdk-go") {
    throw new Skipped("cloudevents has no such option");
  }
  // As nats.js has them: values without outer white space, names as they came. The package wants one value per name.
  const received = natsHeaders();
  for (const [name, value] of headers ?? []) received.append(text(name), text(value));
  const fields = Object.fromEntries([...received].map(([name, values]) => [name.toLowerCase(), values[0]]));
  const event = HTTP.toEvent({ headers: fields, body: body(bytes(data)) });
  if (!event.validate()) throw new Error("validate() says no");
  const isStructured = (fields["content-type"] ?? "").startsWith("application/cloudevents");
  return { attributes: attributesOf(event), data: dataOf(event, !isStructured) };
}

// message.string() of nats.js where the payload is text, else its bytes; nothing where there are none.
function body(payload) {
  if (payload.length === 0) return undefined;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload);
  } catch {
    return payload;
  }
}

function attributesOf(event) {
  const { data, data_base64: base64, ...attributes } = event;
  const known = Object.entries(attributes).filter(([, value]) => value !== undefined);
  return Object.fromEntries(known.map(([name, value]) => [name, tagged(name, value)]));
}

function tagged(name, value) {
  if (name === "time") return { type: "Timestamp", value: String(value) };
  if (typeof value === "boolean") return { type: "Boolean", value: String(value) };
  if (Number.isInteger(value)) return { type: "Integer", value: String(value) };
  return { type: "String", value: typeof value === "string" ? value : JSON.stringify(value) };
}

// The data in the form that its type is for; a value that has not got it is given as it stands.
function dataOf({ data, data_base64: base64, datacontenttype }, isBinary) {
  if (data === undefined && base64 === undefined) return { absent: true };
  const kind = dataKind(datacontenttype, isBinary);
  const isBytes = ArrayBuffer.isView(data) || data === undefined;
  if (isBytes) {
    const octets = base64 === undefined ? Buffer.from(data) : Buffer.from(base64, "base64");
    return kind === "text" ? { text: octets.toString() } : { base64: octets.toString("base64") };
  }
  if (typeof data === "string" && kind === "text") return { text: data };
  if (typeof data === "string" && kind === "bytes") return { base64: Buffer.from(data).toString("base64") };
  return { json: data };
}

function dataKind(contentType, isBinary) {
  if (contentType === undefined) return isBinary ? "bytes" : "json";
  const mediaType = String(contentType).split(";")[0].trim().toLowerCase();
  if (/^(application|text)\/json$|\+json$/.test(mediaType)) return "json";
  return /^text\/|^application\/xml$|\+xml$/.test(mediaType) ? "text" : "bytes";
}

// --- To a message ---

function toMessage({ event: { attributes, data }, mode = "binary", subject, reply, headers }) {
  if (subject !== undefined || reply !== undefined || headers) throw new Skipped("cloudevents has no such option");
  const properties = Object.fromEntries(Object.entries(attributes).map(([name, value]) => [name, native(value)]));
  const event = new CloudEvent({ ...properties, ...payload(data) });
  const message = mode === "structured" ? HTTP.structured(event) : HTTP.binary(event);
  const sent = natsHeaders();
  for (const [name, value] of Object.entries(message.headers)) sent.append(name, String(value));
  const pairs = [...sent].flatMap(([name, values]) => values.map((value) => [name, value]));
  if (mode === "structured") return { headers: pairs, json: JSON.parse(message.body) };
  return { headers: pairs, data: { base64: published(message.body).toString("base64") } };
}

// What nats.js takes for a payload.
function published(body) {
  if (body === undefined) return Buffer.alloc(0);
  if (typeof body === "string" || body instanceof Uint8Array) return Buffer.from(body);
  throw new TypeError(`nats.js publishes strings and bytes, not ${typeof body}`);
}

function native(attribute) {
  if ("native" in attribute) return attribute.native;
  if (attribute.type === "Boolean") return attribute.value === "true";
  if (attribute.type === "Integer") return Number(attribute.value);
  if (attribute.type === "Binary") return new Uint8Array(Buffer.from(attribute.value, "base64"));
  return text(attribute.value);
}

function payload(data) {
  if (data.absent) return {};
  if ("json" in data) return { data: data.json };
  return { data: "text" in data ? text(data.text) : new Uint8Array(bytes(data)) };
}

// --- Spellings ---

function text(spelled) {
  if (typeof spelled === "string") return spelled;
  const units = spelled.utf16.replaceAll(" ", "").match(/.{4}/g) ?? [];
  return String.fromCharCode(...units.map((unit) => parseInt(unit, 16)));
}

function bytes(spelled) {
  return "base64" in spelled ? Buffer.from(spelled.base64, "base64") : Buffer.from(text(spelled.text));
}
