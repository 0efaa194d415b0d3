//! The Rust side of the tests: events of cloudevents-sdk with its `nats` feature, over async-nats.
//!
//! ```text
//! peer send    nats structured URL STREAM SUBJECT    events from standard input
//! peer receive nats COUNT URL STREAM SUBJECT         {"ready":true}, then events to standard output
//! ```
//!
//! Events are JSON lines; the command line is that of `../go/main.go`.

use std::error::Error;
use std::io::stdin;

use async_nats::{Client, Message, RequestErrorKind};
use base64::prelude::{Engine, BASE64_STANDARD};
use cloudevents::binding::nats::{MessageExt, NatsCloudEvent};
use cloudevents::{Data, Event};
use futures::StreamExt;
use serde_json::{json, Map, Value};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, _, detail, url, _, subject] =
        <[String; 6]>::try_from(arguments).map_err(|_| "want 6 arguments")?;
    let client = async_nats::connect(url).await?;
    match command.as_str() {
        "send" => send(&client, subject).await,
        "receive" => receive(&client, subject, detail.parse()?).await,
        _ => Err(format!("unknown command {command:?}").into()),
    }
}

async fn send(client: &Client, subject: String) -> Result<(), Box<dyn Error>> {
    for line in stdin().lines() {
        let mut request: Value = serde_json::from_str(&line?)?;
        let event: Event = serde_json::from_value(request["event"].take())?;
        let payload = NatsCloudEvent::from_event(event)?.payload;
        client.publish(subject.clone(), payload.into()).await?;
    }
    Ok(client.flush().await?)
}

async fn receive(client: &Client, subject: String, count: usize) -> Result<(), Box<dyn Error>> {
    let mut messages = client.subscribe(subject).await?.take(count);
    // flush() waits for the socket, not for the server. A request that nobody answers has gone to the server and back.
    let answer = client.request(client.new_inbox(), Default::default()).await;
    assert!(answer.is_err_and(|error| error.kind() == RequestErrorKind::NoResponders));
    println!("{}", json!({"ready": true}));
    while let Some(message) = messages.next().await {
        println!("{}", read(&message));
    }
    Ok(())
}

fn read(message: &Message) -> Value {
    match message.to_event() {
        Ok(event) => {
            let attributes: Map<String, Value> = event
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string().into()))
                .collect();
            json!({"attributes": attributes, "data": event.data().map(encoded)})
        }
        Err(error) => json!({"error": error.to_string(), "data": null}),
    }
}

fn encoded(data: &Data) -> String {
    BASE64_STANDARD.encode(match data {
        Data::Binary(bytes) => bytes.clone(),
        Data::String(text) => text.clone().into_bytes(),
        Data::Json(value) => value.to_string().into_bytes(),
    })
}
