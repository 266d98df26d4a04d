//! From a frame to the tensor that a detector wants: letterbox, colour order, scale.
