//! Numbers in a shape: what travels between prepare, engine and decode.

/// Contiguous f32 numbers in row-major order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tensor {
    /// The extents, outermost first: `[1, 3, 640, 640]`.
    pub shape: Vec<usize>,
    /// The numbers; as many as the product of the extents.
    pub data: Vec<f32>,
}

impl Tensor {
    /// Zeros in a shape.
    #[must_use]
    pub fn zeros(shape: &[usize]) -> Tensor {
        Tensor { shape: shape.to_vec(), data: vec![0.0; shape.iter().product()] }
    }

    /// Takes on another shape, keeping the room that it has.
    pub fn reshape(&mut self, shape: &[usize]) {
        self.shape.clear();
        self.shape.extend_from_slice(shape);
        self.data.resize(shape.iter().product(), 0.0);
    }
}
