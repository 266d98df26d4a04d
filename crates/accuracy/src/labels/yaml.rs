//! YAML as a tree of text, lists and maps. An alias is refused: expanded, a small file could fill
//! the memory.

use saphyr_parser::{Event, Parser};

use super::LabelsError;

/// The largest file that is read.
pub(super) const LARGEST: u64 = 4 << 20;
/// How deep lists and maps may be inside each other.
const DEEPEST: usize = 16;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum YamlNode {
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(String, YamlNode)>),
}

impl YamlNode {
    /// The value of a key; of several the last, as Python reads it.
    pub(super) fn get(&self, key: &str) -> Option<&YamlNode> {
        match self {
            YamlNode::Map(pairs) => {
                pairs.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            YamlNode::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A list or map that is not complete yet.
enum OpenNode {
    List(Vec<YamlNode>),
    /// With the key whose value comes next.
    Map(Vec<(String, YamlNode)>, Option<String>),
}

/// The first document of a text.
pub(super) fn parse(text: &str) -> Result<YamlNode, LabelsError> {
    let mut open: Vec<OpenNode> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| LabelsError::new("", format!("it is not YAML: {error}")))?;
        let wrong = |why: &str| LabelsError::new(format!("line {}", span.start.line()), why);
        let done = match event {
            Event::Scalar(text, ..) => YamlNode::Text(text.into_owned()),
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() == DEEPEST => {
                return Err(wrong("lists and maps are too deep inside each other"));
            }
            Event::SequenceStart(..) => {
                open.push(OpenNode::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(OpenNode::Map(Vec::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(OpenNode::List(list)) => YamlNode::List(list),
                Some(OpenNode::Map(pairs, _)) => YamlNode::Map(pairs),
                None => return Err(wrong("it is not YAML")),
            },
            Event::Alias(_) => return Err(wrong("aliases (*name) are not read; write it out")),
            _ => continue,
        };
        match open.last_mut() {
            None => return Ok(done),
            Some(OpenNode::List(list)) => list.push(done),
            Some(OpenNode::Map(pairs, key)) => match (key.take(), done) {
                (Some(name), value) => pairs.push((name, value)),
                (None, YamlNode::Text(name)) => *key = Some(name),
                (None, _) => return Err(wrong("a key that is not text")),
            },
        }
    }
    Err(LabelsError::new("", "it is empty"))
}
