//! What has completed, and nothing that completed earlier left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};

/// Waits for a completion and returns it with *all* that completed before it, which `outcomes` relies on.
///
/// lapin resolves the confirms of a channel on one thread, each fully (value stored, waker called) before the
/// next, and a waker puts its future into the queue of ready ones. So when a completion is seen, all earlier ones
/// are in that queue, and an empty queue means that all are out. `poll_next` says `Pending` for an empty queue, but
/// also, to be fair to other tasks, when it has polled as many futures as there are; in that case it wakes the task
/// first, which the waker given to it notices, and it is asked again.
///
/// # Cancel safety
/// Safe: what it took out it returns in the same poll.
pub(super) async fn drain<T>(in_flight: &mut FuturesUnordered<BoxFuture<'static, T>>) -> Vec<T> {
    std::future::poll_fn(|context| {
        let noticing = Arc::new(NoticingWaker { woken: AtomicBool::new(false), task: context.waker().clone() });
        let waker = Waker::from(Arc::clone(&noticing));
        let mut inner = Context::from_waker(&waker);
        let mut ready = Vec::new();
        loop {
            match in_flight.poll_next_unpin(&mut inner) {
                Poll::Ready(Some(item)) => ready.push(item),
                Poll::Ready(None) => return Poll::Ready(ready),
                Poll::Pending if noticing.woken.swap(false, Ordering::SeqCst) => {}
                Poll::Pending if ready.is_empty() => return Poll::Pending,
                Poll::Pending => return Poll::Ready(ready),
            }
        }
    })
    .await
}

struct NoticingWaker {
    woken: AtomicBool,
    task: Waker,
}

impl Wake for NoticingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.task.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use futures::channel::oneshot;
    use futures::future::FutureExt as _;
    use rand::seq::SliceRandom as _;

    use super::*;

    /// What [`drain`] promises: with a completion it returns all that completed before it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_drain_leaves_no_earlier_completion_behind() {
        const COUNT: usize = 2_000;
        const ROUNDS: usize = 20;
        for _ in 0..ROUNDS {
            let mut in_flight = FuturesUnordered::<BoxFuture<'static, usize>>::new();
            let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..COUNT).map(|_| oneshot::channel::<usize>()).unzip();
            senders.shuffle(&mut rand::rng());
            // Completed by another thread, as lapin's, while futures are still being polled for the first time.
            let resolver = std::thread::spawn(move || {
                for (order, sender) in senders.into_iter().enumerate() {
                    sender.send(order).unwrap();
                }
            });
            in_flight.extend(receivers.into_iter().map(|receiver| receiver.map(Result::unwrap).boxed()));
            let mut seen = vec![false; COUNT];
            while !in_flight.is_empty() {
                for order in drain(&mut in_flight).await {
                    seen[order] = true;
                }
                let first_unseen = seen.iter().position(|seen| !seen).unwrap_or(COUNT);
                assert!(seen[first_unseen..].iter().all(|seen| !seen), "{first_unseen} was left behind");
            }
            resolver.join().unwrap();
        }
    }

    /// `poll_next` yields once two futures were woken while it polled them, as lapin's thread may do, although more are
    /// ready behind them.
    #[tokio::test]
    async fn a_yield_is_not_taken_for_an_empty_queue() {
        let woken_while_polled = || {
            let mut polled = false;
            std::future::poll_fn(move |context| {
                if !std::mem::replace(&mut polled, true) {
                    context.waker().wake_by_ref();
                }
                Poll::<usize>::Pending
            })
        };
        let mut in_flight = FuturesUnordered::<BoxFuture<'static, usize>>::new();
        in_flight.push(std::future::ready(1).boxed());
        in_flight.push(woken_while_polled().boxed());
        in_flight.push(woken_while_polled().boxed());
        in_flight.push(std::future::ready(2).boxed());
        assert_eq!(drain(&mut in_flight).await, [1, 2]);
    }

    #[tokio::test]
    async fn a_drain_that_is_dropped_loses_nothing() {
        let mut in_flight = FuturesUnordered::<BoxFuture<'static, usize>>::new();
        let (sender, receiver) = oneshot::channel();
        in_flight.push(receiver.map(Result::unwrap).boxed());
        assert!(drain(&mut in_flight).now_or_never().is_none());
        sender.send(7).unwrap();
        assert_eq!(drain(&mut in_flight).await, [7]);
    }
}
