//! Over whole streams.

use proptest::{collection::vec, prelude::*};

use super::any::{honest, hostile, stream, twisted_header};
use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_the_library_can_read_passes_byte_for_byte(stream in stream(honest())) {
        let (out, said) = screened(&stream);
        prop_assert_eq!(&out, &stream);
        prop_assert!(said.is_empty(), "{:?}", said);
    }

    #[test]
    fn the_library_can_read_whatever_comes_out(stream in stream(hostile())) {
        let (out, _) = screened(&stream);
        parsed(&out);
        prop_assert_eq!(screened(&out).1, Vec::<String>::new(), "and a second screen finds nothing");
    }

    #[test]
    fn how_the_bytes_arrive_changes_nothing(
        stream in stream(hostile()),
        reads in vec(1_usize..40, 1..8),
        outs in vec(1_usize..40, 1..8),
    ) {
        prop_assert_eq!(through(&stream, &reads, &outs), screened(&stream));
    }

    #[test]
    fn a_frame_is_replaced_when_the_library_could_not_read_it_and_only_then(header in twisted_header()) {
        let (out, said) = screened(&header);
        let readable = parse_frame(&header[..]).is_ok();
        prop_assert_eq!(said.is_empty(), readable);
        prop_assert_eq!(out == header, readable);
    }

    #[test]
    fn no_bytes_at_all_make_it_stumble(bytes in vec(any::<u8>(), 0..300), reads in vec(1_usize..40, 1..8)) {
        through(&bytes, &reads, &[64]);
    }
}

/// Every way to cut a stream in two, and one byte at a time.
#[test]
fn a_cut_anywhere_changes_nothing() {
    let hostile = header(1 << 7, &short(b"\xff"));
    let stream = [&deliver(b"\xff", b"k")[..], &hostile, &frame(BODY, b"hello"), &frame(HEARTBEAT, b"")].concat();
    let whole = screened(&stream);
    assert_eq!(whole.1, ["exchange", "message-id"]);
    for cut in 1..stream.len() {
        assert_eq!(through(&stream, &[cut, usize::MAX], &[1 << 20]), whole, "cut at {cut}");
    }
    assert_eq!(through(&stream, &[1], &[1]), whole);
}

#[test]
fn what_is_no_frame_goes_on_to_the_library() {
    let refusal = b"AMQP\x00\x00\x09\x01";
    let after = with_headers(b"\x01\xffV");
    let (out, said) = screened(&[&refusal[..], &after].concat());
    assert_eq!((&out[..8], said.len()), (&refusal[..], 1), "frames are followed again after it");
    let unknown = [&frame(9, b"x")[..], &after].concat();
    assert_eq!(screened(&unknown), (unknown, vec![]), "the library gives up here");
    let mut endless = after;
    endless.pop();
    endless.push(0);
    assert!(parse_frame(&endless[..]).is_err_and(|error| !error.is_incomplete()));
    assert_eq!(screened(&endless), (endless.clone(), vec![]));
}

#[test]
fn a_large_body_and_a_large_method_pass_as_they_come() {
    let stream =
        [frame(BODY, &vec![FRAME_END; 1 << 20]), frame(METHOD, &vec![1; 5_000]), frame(HEARTBEAT, b"")].concat();
    assert_eq!(through(&stream, &[60_000], &[70_000]), (stream, vec![]));
}

#[test]
fn a_header_as_long_as_the_buffer_is_looked_at() {
    let entries = entry(b"n", b'S', &long(&vec![b'x'; BUFFER_BYTES - with_headers(b"n.S....").len()]));
    let longest = with_headers(&entries);
    assert_eq!(longest.len(), BUFFER_BYTES);
    let stream = [tune(0), longest.clone(), frame(BODY, b"hello")].concat();
    assert_eq!(through(&stream, &[1_000], &[999]), (stream, vec![]));
    let longer = with_headers(&[&entries[..], &entry(b"", b'V', b"")].concat());
    let stream = [tune(0), longer, frame(BODY, b"hello")].concat();
    let (out, said) = through(&stream, &[1_000], &[999]);
    assert_eq!(said, ["all, too long"]);
    assert!(out.ends_with(&frame(BODY, b"hello")), "the next frame is found");
    assert_eq!(parsed(&out).len(), 3);
}

#[test]
fn no_header_is_longer_than_what_the_broker_proposed() {
    let entries = entry(b"n", b'S', &long(&vec![b'x'; 5_000]));
    let fits = with_headers(&entries);
    let length = u32::try_from(fits.len()).unwrap();
    for (frame_max, lost) in
        [(0, None), (length, None), (length - 1, Some("all, too long")), (1, Some("all, too long"))]
    {
        let (out, said) = screened(&[tune(frame_max), fits.clone()].concat());
        assert_eq!(said.first().map(String::as_str), lost, "{frame_max}");
        assert_eq!(parsed(&out).len(), 2);
    }
}

#[test]
fn a_note_that_makes_it_too_long_stands_alone() {
    let entries = entry(b"n", b'S', &long(&vec![b'x'; 5_000]));
    let bad_id = header(HEADERS | 1 << 7, &[long(&entries), short(b"\xff")].concat());
    let length = u32::try_from(bad_id.len()).unwrap();
    for (room, lost) in [(100, "message-id"), (0, "all, too long")] {
        let (out, said) = screened(&[tune(length + room), bad_id.clone()].concat());
        assert_eq!(said, [lost]);
        assert!(out.len() - tune(0).len() <= (length + room) as usize);
    }
}
