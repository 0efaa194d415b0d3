//! Answers of cloudevents-sdk to conformance cases: what spec-fixtures/README.md calls a program for `--exec`.
//!
//! `NatsCloudEvent::from_event` writes and `MessageExt::to_event` reads. Nothing is mended here: values are spelled out,
//! the crate is called, and what it gave is spelled again.

use std::convert::TryFrom;
use std::io::{stdin, BufRead};

use async_nats::{HeaderMap, Message};
use base64::prelude::{Engine, BASE64_STANDARD};
use chrono::DateTime;
use cloudevents::binding::nats::{MessageExt, NatsCloudEvent};
use cloudevents::event::{ExtensionValue, TryIntoTime, TryIntoUrl};
use cloudevents::{
    AttributesReader, AttributesWriter, Data, Event, EventBuilder, EventBuilderV10,
};
use serde::Deserialize;
use serde_json::{json, Map, Value};

enum Refusal {
    Skipped(&'static str),
    Error(String),
}

use Refusal::Skipped;

const NO_OPTION: Refusal = Skipped("cloudevents-sdk has no such option");
const NO_BINARY: Refusal = Skipped("there is no binary mode");

type Answer<T = Value> = Result<T, Refusal>;

fn refused(error: impl ToString) -> Refusal {
    Refusal::Error(error.to_string())
}

fn main() {
    for line in stdin().lock().lines() {
        let line = line.unwrap();
        println!("{}", answered(&line));
    }
}

fn answered(line: &str) -> Value {
    // Data of cases may be deeper than serde_json reads by default.
    let mut reader = serde_json::Deserializer::from_str(line);
    reader.disable_recursion_limit();
    let Ok(asked) = Value::deserialize(&mut reader) else {
        return json!({"skipped": "the input is no text in Rust"});
    };
    let input = &asked["input"];
    let found = match asked["op"].as_str().unwrap() {
        "attributes.timestamp" => timestamp(input),
        "from_nats_message" => from_message(input),
        "to_nats_message" => to_message(input),
        _ => Err(Skipped("cloudevents-sdk has no such operation")),
    };
    match found {
        Ok(result) => json!({"id": asked["id"], "result": result}),
        Err(Refusal::Error(text)) => json!({"id": asked["id"], "error": text}),
        Err(Skipped(reason)) => json!({"id": asked["id"], "skipped": reason}),
    }
}

fn timestamp(input: &Value) -> Answer {
    let time = text(&input["text"])?.into_time().map_err(refused)?;
    // A leap second has the instant of the next one. The text is that of the crate's JSON format.
    let instant = DateTime::from_timestamp_micros(time.timestamp_micros()).unwrap();
    let instant = instant.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    Ok(json!({"text": serde_json::to_value(time).unwrap(), "instant": instant}))
}

// --- From a message ---

fn from_message(input: &Value) -> Answer {
    if input.get("mode").is_some() || input.get("extension_types").is_some() {
        return Err(NO_OPTION);
    }
    if input.get("parse_data").is_some() || input["dialect"] == "sdk-go" {
        return Err(NO_OPTION);
    }
    let headers = headers(&input["headers"])?;
    if headers.as_ref().is_some_and(is_binary) {
        return Err(NO_BINARY);
    }
    let payload = match input.get("data") {
        Some(data) => bytes(data)?,
        None => Vec::new(),
    };
    let message = Message {
        subject: "s".into(),
        reply: None,
        length: payload.len(),
        payload: payload.into(),
        headers,
        status: None,
        description: None,
    };
    let event = message.to_event().map_err(refused)?;
    Ok(json!({"attributes": attributes(&event), "data": data(&event)?}))
}

fn headers(spelled: &Value) -> Answer<Option<HeaderMap>> {
    let Some(pairs) = spelled.as_array() else {
        return Ok(None);
    };
    let mut headers = HeaderMap::new();
    for pair in pairs {
        let name: async_nats::HeaderName = text(&pair[0])?.parse().map_err(refused)?;
        let value: async_nats::HeaderValue = text(&pair[1])?.parse().map_err(refused)?;
        headers.append(name, value);
    }
    Ok(Some(headers))
}

/// Whether a message is none for a binding without binary mode; a case of it tests something else.
fn is_binary(headers: &HeaderMap) -> bool {
    let mut binary = false;
    for (name, values) in headers.iter() {
        let name = name.to_string().to_lowercase();
        let value = values[0].as_str().to_lowercase();
        if name == "content-type" && value.starts_with("application/cloudevents") {
            return false;
        }
        binary |= name.starts_with("ce-");
    }
    binary
}

fn attributes(event: &Event) -> Value {
    let mut found = Map::new();
    for (name, value) in event.iter() {
        let tagged = match event.extension(name) {
            Some(ExtensionValue::Boolean(_)) => "Boolean",
            Some(ExtensionValue::Integer(_)) => "Integer",
            _ => "String",
        };
        found.insert(
            name.to_string(),
            json!({"type": tagged, "value": value.to_string()}),
        );
    }
    if let Some(time) = event.time() {
        // As the JSON format of the crate writes it.
        let text = serde_json::to_value(time).unwrap();
        found.insert("time".into(), json!({"type": "Timestamp", "value": text}));
    }
    found.into()
}

/// The data in the form that its type is for.
fn data(event: &Event) -> Answer {
    let Some(data) = event.data().cloned() else {
        return Ok(json!({"absent": true}));
    };
    let content_type = event.datacontenttype().unwrap_or("application/json");
    let media_type = content_type.split(';').next().unwrap_or_default();
    let media_type = media_type.trim().to_lowercase();
    if matches!(media_type.as_str(), "application/json" | "text/json")
        || media_type.ends_with("+json")
    {
        return Ok(json!({"json": Value::try_from(data).map_err(refused)?}));
    }
    let is_text = media_type.starts_with("text/")
        || media_type == "application/xml"
        || media_type.ends_with("+xml");
    let octets = Vec::<u8>::try_from(data).map_err(refused)?;
    Ok(match (is_text, String::from_utf8(octets)) {
        (true, Ok(text)) => json!({ "text": text }),
        (false, Ok(text)) => json!({"base64": BASE64_STANDARD.encode(text)}),
        (_, Err(error)) => json!({"base64": BASE64_STANDARD.encode(error.as_bytes())}),
    })
}

// --- To a message ---

fn to_message(input: &Value) -> Answer {
    if ["subject", "reply", "headers"]
        .iter()
        .any(|name| input.get(name).is_some())
    {
        return Err(NO_OPTION);
    }
    if input["mode"] != "structured" {
        return Err(NO_BINARY);
    }
    let event = event(&input["event"])?;
    let payload = NatsCloudEvent::from_event(event).map_err(refused)?.payload;
    let mut reader = serde_json::Deserializer::from_slice(&payload);
    reader.disable_recursion_limit();
    let written = Value::deserialize(&mut reader).unwrap();
    Ok(json!({"headers": [], "json": written}))
}

fn event(spelled: &Value) -> Answer<Event> {
    let mut builder = EventBuilderV10::new();
    let mut content_type = None;
    let mut schema = None;
    for (name, attribute) in spelled["attributes"].as_object().unwrap() {
        if let Some(native) = attribute.get("native") {
            if native.is_null() {
                continue;
            }
            return Err(Skipped("Rust's types do not let an attribute be this"));
        }
        let value = text(&attribute["value"])?;
        builder = match name.as_str() {
            "specversion" if value != "1.0" => return Err(Skipped("EventBuilderV10 writes 1.0")),
            "specversion" => builder,
            "id" => builder.id(value),
            "source" => builder.source(value),
            "type" => builder.ty(value),
            "subject" => builder.subject(value),
            "time" => builder.time(value),
            "dataschema" => {
                schema = Some(value.into_url().map_err(refused)?);
                builder
            }
            "datacontenttype" => {
                content_type = Some(value);
                builder
            }
            _ => builder.extension(name, extension(&attribute["type"], value)?),
        };
    }
    if let Some(data) = payload(&spelled["data"])? {
        // data() asks for a type, and JSON is the one of a value.
        let is_bytes = matches!(data, Data::Binary(_));
        let given = content_type.clone();
        builder = builder.data(given.unwrap_or("application/json".into()), data);
        content_type = content_type.or((!is_bytes).then(|| "application/json".into()));
    }
    let mut event = builder.build().map_err(refused)?;
    event.set_datacontenttype(content_type);
    event.set_dataschema(schema);
    Ok(event)
}

fn extension(kind: &Value, value: String) -> Answer<ExtensionValue> {
    // The other types are strings in this crate.
    Ok(match kind.as_str() {
        Some("Boolean") => ExtensionValue::Boolean(value == "true"),
        Some("Integer") => ExtensionValue::Integer(value.parse().map_err(refused)?),
        _ => ExtensionValue::String(value),
    })
}

fn payload(spelled: &Value) -> Answer<Option<Data>> {
    Ok(if spelled.get("absent").is_some() {
        None
    } else if let Some(value) = spelled.get("json") {
        Some(Data::Json(value.clone()))
    } else if let Some(spelled) = spelled.get("text") {
        Some(Data::String(text(spelled)?))
    } else {
        Some(Data::Binary(bytes(spelled)?))
    })
}

// --- Spellings ---

fn text(spelled: &Value) -> Answer<String> {
    if let Some(text) = spelled.as_str() {
        return Ok(text.to_string());
    }
    let digits: String = spelled["utf16"].as_str().unwrap().split(' ').collect();
    let units: Vec<u16> = (0..digits.len() / 4)
        .map(|i| u16::from_str_radix(&digits[4 * i..4 * i + 4], 16).unwrap())
        .collect();
    String::from_utf16(&units).map_err(|_| Skipped("a lone surrogate is no text in Rust"))
}

fn bytes(spelled: &Value) -> Answer<Vec<u8>> {
    match spelled.get("base64") {
        Some(encoded) => Ok(BASE64_STANDARD.decode(encoded.as_str().unwrap()).unwrap()),
        None => Ok(text(&spelled["text"])?.into_bytes()),
    }
}
