use futures::FutureExt;
use protocol::names::{Address, RoutingKey};

use super::*;
use crate::{claims::Claims, connection::ConnectionOptions, endpoint::parse_list, link::link};

const PATIENCE: Duration = Duration::from_secs(10);

/// A lane whose link never has a connection, and a seat on it.
fn scene() -> (Arc<Lane>, Arc<Seat>) {
    let options = ConnectionOptions { name: "test".to_owned(), heartbeat: PATIENCE, timeout: PATIENCE };
    let endpoints = parse_list(&["amqp://localhost".to_owned()], "").unwrap();
    let (link, _driver) = link(endpoints.into(), options, &[]);
    let timing = Timing { ack_interval: PATIENCE, request_timeout: PATIENCE };
    let lane = Lane::new(1, link, Weak::new(), timing, false);
    let queue = Address { client: "c".into(), consumer: "a".into(), instance: "1".into() }.queue().unwrap();
    let claim = Claims::default().claim(&queue).now_or_never().unwrap().unwrap();
    let seat = Seat::new(lane.clone(), claim, RoutingKey::new("a").unwrap(), 16);
    (lane, seat)
}

#[tokio::test]
async fn a_rebuild_does_not_begin_for_a_contested_upgrade_that_has_stopped() {
    let (lane, seat) = scene();
    // Somebody wants it: only the channel is missing.
    assert!(matches!(lane.attach(&seat, Some(1)).await, Err(AttachError::NoChannel)));
    assert_eq!(seat.withdraw().id, lane.id);
    assert!(matches!(lane.attach(&seat, Some(1)).await, Err(AttachError::Unwanted)));
    seat.begin_anew();
    assert!(matches!(lane.attach(&seat, None).await, Err(AttachError::NoChannel)));
    seat.depart();
    seat.begin_anew();
    assert!(matches!(lane.attach(&seat, None).await, Err(AttachError::Unwanted)));
}

#[tokio::test]
async fn a_seat_that_has_left_is_not_taken_in() {
    let (lane, seat) = scene();
    lane.adopt(&seat).await;
    assert_eq!(lane.turn.lock().await.seats.len(), 1);
    let leaver = Leaver { seat: seat.clone(), live: None, consumer: None, unsettled: Vec::new() };
    seat.depart().leave(leaver).await;
    lane.adopt(&seat).await;
    assert_eq!(lane.turn.lock().await.seats.len(), 0);
}

#[tokio::test]
async fn a_look_counts_for_nothing_once_the_consumer_of_then_is_gone() {
    let (lane, seat) = scene();
    seat.attached.store(5, Ordering::Release);
    assert!(!lane.establish(&seat, 5).await, "the channel is lost");
    assert!(seat.stake.is_fresh());
}
