use super::*;
use proptest::prelude::*;

fn frames(body: Bytes) -> Vec<Frame> {
    let mut fragments = Fragments::new(body);
    std::iter::from_fn(|| fragments.next_frame()).collect()
}

/// Opcode, fin and length of each frame.
fn shape(body: impl Into<Bytes>) -> Vec<(Opcode, bool, usize)> {
    frames(body.into()).iter().map(|f| (f.opcode, f.fin, f.payload.len())).collect()
}

#[test]
fn text_when_the_body_is_utf8_and_binary_when_not() {
    assert_eq!(shape("{\"a\": \"🐢\"}"), [(Opcode::Text, true, 13)]);
    assert_eq!(shape("\0"), [(Opcode::Text, true, 1)]);
    assert_eq!(shape(&b"\xff"[..]), [(Opcode::Binary, true, 1)]);
    // An emoji cut short, a surrogate, an overlong slash.
    for body in [&b"\xf0\x9f\x90"[..], b"\xed\xa0\x80", b"\xc0\xaf"] {
        assert_eq!(shape(body), [(Opcode::Binary, true, body.len())]);
    }
}

#[test]
fn an_empty_body_is_one_empty_final_text_frame() {
    let mut fragments = Fragments::new(Bytes::new());
    assert_eq!((fragments.remaining(), fragments.is_finished()), (0, false));
    assert_eq!(fragments.next_frame(), Some(Frame { opcode: Opcode::Text, fin: true, payload: Bytes::new() }));
    assert!(fragments.is_finished());
    assert_eq!(fragments.next_frame(), None);
}

#[test]
fn fragments_are_cut_at_16_kib() {
    const N: usize = FRAGMENT_BYTES;
    assert_eq!(shape(vec![b'x'; N]), [(Opcode::Text, true, N)]);
    assert_eq!(shape(vec![b'x'; N + 1]), [(Opcode::Text, false, N), (Opcode::Continuation, true, 1)]);
    assert_eq!(shape(vec![0xff; 2 * N]), [(Opcode::Binary, false, N), (Opcode::Continuation, true, N)]);
    assert_eq!(shape(vec![0xff; 1024 * 1024]).len(), 64);
}

#[test]
fn a_character_across_the_cut_and_a_bad_byte_at_the_end_count_for_the_whole_body() {
    let mut body = vec![b'x'; FRAGMENT_BYTES - 1];
    body.extend_from_slice("🐢".as_bytes());
    assert_eq!(shape(body.clone()), [(Opcode::Text, false, FRAGMENT_BYTES), (Opcode::Continuation, true, 3)]);
    body.push(0xff);
    assert_eq!(shape(body), [(Opcode::Binary, false, FRAGMENT_BYTES), (Opcode::Continuation, true, 4)]);
}

#[test]
fn nothing_is_copied() {
    let body = Bytes::from(vec![7; 3 * FRAGMENT_BYTES + 5]);
    let start = body.as_ptr();
    for (i, frame) in frames(body).iter().enumerate() {
        assert_eq!(frame.payload.as_ptr(), start.wrapping_add(i * FRAGMENT_BYTES));
    }
}

proptest! {
    #[test]
    fn the_frames_are_the_body(
        seed in prop_oneof![any::<Vec<u8>>(), any::<String>().prop_map(String::into_bytes)],
        repeat in 0usize..2000,
    ) {
        let body = Bytes::from(seed.repeat(repeat));
        let first = if std::str::from_utf8(&body).is_ok() { Opcode::Text } else { Opcode::Binary };
        let mut fragments = Fragments::new(body.clone());
        let mut joined = Vec::new();
        while let Some(frame) = fragments.next_frame() {
            prop_assert_eq!(frame.opcode, if joined.is_empty() { first } else { Opcode::Continuation });
            joined.extend_from_slice(&frame.payload);
            prop_assert_eq!(frame.fin, joined.len() == body.len());
            prop_assert!(frame.payload.len() == FRAGMENT_BYTES || frame.fin && frame.payload.len() < FRAGMENT_BYTES);
            prop_assert_eq!(fragments.remaining(), body.len() - joined.len());
            prop_assert_eq!(fragments.is_finished(), frame.fin);
        }
        prop_assert!(fragments.is_finished());
        prop_assert_eq!(joined, body);
    }
}
