//! Writing protobuf: as much of it as an ONNX file needs.
//!
//! A message is its fields one after the other, each a number and a value; a message in a
//! message is its bytes with their count before them. That is all, so it is written here
//! and not generated.

/// The fields of one message, written one after the other.
#[derive(Debug, Default, Clone)]
pub(super) struct Message(pub(super) Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(super) fn number(&mut self, field: u64, value: i64) -> &mut Self {
        self.varint(field << 3);
        self.varint(value.cast_unsigned());
        self
    }

    pub(super) fn float(&mut self, field: u64, value: f32) -> &mut Self {
        self.varint(field << 3 | 5);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// The number and the length of a field of bytes; the bytes are to follow.
    pub(super) fn announce(&mut self, field: u64, length: usize) -> &mut Self {
        self.varint(field << 3 | 2);
        self.varint(length as u64);
        self
    }

    pub(super) fn bytes(&mut self, field: u64, bytes: &[u8]) -> &mut Self {
        self.announce(field, bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn text(&mut self, field: u64, text: &str) -> &mut Self {
        self.bytes(field, text.as_bytes())
    }

    pub(super) fn message(&mut self, field: u64, message: &Message) -> &mut Self {
        self.bytes(field, &message.0)
    }
}

/// The bytes that a field takes, of a number below 16 and this many bytes.
pub(super) fn field_length(bytes: usize) -> usize {
    let mut count = Message::default();
    count.announce(1, bytes);
    count.0.len() + bytes
}
