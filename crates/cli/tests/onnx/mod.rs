//! Writes small ONNX files, as strangers might: any names, any shapes, any graph.

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [varint(field << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// An input or output of floats.
fn value(name: &str, shape: &[u64]) -> Vec<u8> {
    let extents: Vec<u8> = shape.iter().flat_map(|n| bytes(1, number(1, *n))).collect();
    let tensor = [number(1, 1), bytes(2, extents)].concat();
    [bytes(1, name), bytes(2, bytes(1, tensor))].concat()
}

/// A graph under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    body: Vec<u8>,
    metadata: Vec<u8>,
}

impl Graph {
    /// Adds an operator with at most one attribute, an integer.
    pub(crate) fn node(
        mut self,
        op: &str,
        inputs: &[&str],
        output: &str,
        attribute: Option<(&str, u64)>,
    ) -> Graph {
        let mut node: Vec<u8> = inputs.iter().flat_map(|name| bytes(1, name)).collect();
        node.extend(bytes(2, output));
        node.extend(bytes(3, output));
        node.extend(bytes(4, op));
        if let Some((name, value)) = attribute {
            // The type of an attribute that is an integer is 2.
            let attribute = [bytes(1, name), number(3, value), number(20, 2)].concat();
            node.extend(bytes(5, attribute));
        }
        self.body.extend(bytes(1, node));
        self
    }

    /// Adds a constant of 64-bit integers; without extents it is one number.
    pub(crate) fn integers(self, name: &str, shape: &[u64], values: &[i64]) -> Graph {
        self.constant(name, shape, 7, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Adds a constant of floats.
    pub(crate) fn floats(self, name: &str, shape: &[u64], values: &[f32]) -> Graph {
        self.constant(name, shape, 1, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    fn constant(mut self, name: &str, shape: &[u64], kind: u64, values: Vec<u8>) -> Graph {
        let mut tensor: Vec<u8> = shape.iter().flat_map(|n| number(1, *n)).collect();
        tensor.extend([number(2, kind), bytes(8, name), bytes(9, values)].concat());
        self.body.extend(bytes(5, tensor));
        self
    }

    /// Adds an entry of metadata.
    pub(crate) fn metadata(mut self, key: &str, text: &str) -> Graph {
        self.metadata.extend(bytes(14, [bytes(1, key), bytes(2, text)].concat()));
        self
    }

    /// The file, with an input and an output.
    pub(crate) fn file(self, input: (&str, &[u64]), output: (&str, &[u64])) -> Vec<u8> {
        let ends = [bytes(11, value(input.0, input.1)), bytes(12, value(output.0, output.1))];
        let graph = [self.body, bytes(2, "g"), ends.concat()].concat();
        let operators = [bytes(1, ""), number(2, 17)].concat();
        [number(1, 8), bytes(7, graph), bytes(8, operators), self.metadata].concat()
    }
}

/// A detector of two classes that answers with its constants, whatever it sees: three boxes.
pub(crate) fn detector(names: &str) -> Vec<u8> {
    let answer: Vec<f32> = (0..6 * 84).map(|n| if n < 4 * 84 { 20.0 } else { 0.6 }).collect();
    Graph::default()
        .node("ReduceMax", &["images"], "most", Some(("keepdims", 0)))
        .node("Mul", &["most", "none"], "nothing", None)
        .node("Add", &["answer", "nothing"], "output0", None)
        .floats("none", &[], &[0.0])
        .floats("answer", &[1, 6, 84], &answer)
        .metadata("names", names)
        .metadata("stride", "32")
        .metadata("task", "detect")
        .file(("images", &[1, 3, 64, 64]), ("output0", &[1, 6, 84]))
}
