use std::path::Path;

use proptest::prelude::*;

use super::*;

const COCO: &str = r#"{
  "info": {"year": 2026},
  "images": [{"id": 9, "file_name": "b.jpg", "width": 20, "height": 10},
             {"id": 4, "file_name": "folder/a.jpg", "width": 20, "height": 10}],
  "annotations": [
    {"id": 1, "image_id": 9, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 11.5, "iscrowd": 0},
    {"id": 2, "image_id": 9, "category_id": 1, "bbox": [0, 0, 2, 2], "iscrowd": 1,
     "segmentation": {"size": [10, 20], "counts": [0, 4, 196]}},
    {"id": 3, "image_id": 4, "category_id": 1, "segmentation": [[2, 2, 6, 2, 6, 6, 2, 6]]},
    {"id": 4, "image_id": 77, "category_id": 1, "bbox": [0, 0, 2, 2]}],
  "categories": [{"id": 3, "name": "cat"}, {"id": 1, "name": "person", "supercategory": "x"}]
}"#;

#[test]
fn a_coco_file_is_read_by_ids_and_names() {
    let labels = LabelSet::from_coco(COCO.as_bytes()).unwrap();
    let names: Vec<&str> = labels.classes().iter().map(|class| class.name.as_str()).collect();
    assert_eq!((names, labels.images()), (vec!["person", "cat"], Some(2)));
    let a = labels.find("a.jpg").unwrap().unwrap();
    assert_eq!(a, ImagePlace::Coco(0), "in the order of the ids");
    let a = labels.image(&a, (10, 20)).unwrap();
    assert_eq!(a.id, Some(4));
    // Neither box nor area is given: both are the polygon's.
    assert_eq!((a.objects[0].bounds, a.objects[0].area), ([2.0, 2.0, 4.0, 4.0], 16.0));
    let b = labels.image(&labels.find("b.jpg").unwrap().unwrap(), (10, 20)).unwrap();
    assert_eq!((b.objects[0].class, b.objects[0].area), (1, 11.5));
    assert!(b.objects[1].crowd && matches!(b.objects[1].outline, ObjectOutline::Runs(_)));
    assert_eq!(labels.find("c.jpg").unwrap(), None);
}

#[test]
fn what_is_wrong_with_a_coco_file_is_said() {
    let why = |text: &str| LabelSet::from_coco(text.as_bytes()).unwrap_err().to_string();
    assert!(why("[]").contains("these are detections"));
    assert!(why("{}").contains("missing field `images`"));
    assert!(why("{\"images\": 3").contains("line 1 column"));
    assert!(why(&COCO.replace("\"id\": 9,", "\"id\": 4,")).contains("two have the id 4"));
    let image = |text: &str, size: (u32, u32)| {
        let labels = LabelSet::from_coco(text.as_bytes()).unwrap();
        labels.image(&ImagePlace::Coco(1), size).unwrap_err().to_string()
    };
    let other = image(COCO, (20, 20));
    assert!(other.contains("20 x 10 pixels, but b.jpg has 20 x 20"), "{other}");
    let wrong = image(&COCO.replace("[0, 4, 196]", "[0, 4, 1960]"), (10, 20));
    assert!(wrong.contains("annotation 2") && wrong.contains("do not fit"), "{wrong}");
    let wrong = image(&COCO.replace("[1, 2, 3, 4]", "[1, 2]"), (10, 20));
    assert!(wrong.contains("annotation 1: its bbox has 2 numbers"), "{wrong}");
    let twice = COCO.replace("\"b.jpg\"", "\"other/a.jpg\"");
    let labels = LabelSet::from_coco(twice.as_bytes()).unwrap();
    assert!(labels.find("a.jpg").unwrap_err().to_string().contains("several images are called"));
}

/// Writes files, with their folders.
fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

#[test]
fn a_yolo_data_set_is_found_from_its_yaml() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "# a comment\npath: ../set # root\ntrain: images/train\nval: [images/val]\ntest:\n\
                names:\n  0: person\n  1: \"car\"\ndownload: |\n  import this\n";
    write(
        folder.path(),
        &[
            ("set/data.yaml", yaml),
            ("set/images/val/a.jpg", ""),
            ("set/images/val/empty.jpg", ""),
            ("set/images/train/a.jpg", ""),
            ("set/labels/val/a.txt", "1 0.5 0.5 0.2 0.4\n\n1 0.5 0.5 0.2 0.4\n"),
            ("set/labels/train/a.txt", "0 0.5 0.5 1 1\n"),
        ],
    );
    let yaml = folder.path().join("set/data.yaml");
    let labels = LabelSet::read(&yaml, None).unwrap();
    assert_eq!(labels.classes()[1], LabelClass { id: 1, name: "car".into() });
    let image = labels.image(&labels.find("a.png").unwrap().unwrap(), (100, 200)).unwrap();
    assert_eq!(image.objects.len(), 1, "a line that occurs twice counts once");
    assert_eq!(image.objects[0].bounds, [80.0, 30.0, 40.0, 40.0]);
    let empty = labels.find("empty.jpg").unwrap().unwrap();
    assert_eq!(labels.image(&empty, (9, 9)).unwrap(), LabelledImage::default());
    assert_eq!(labels.find("other.jpg").unwrap(), None);
    // The folder of the frames says which part of the data set is meant.
    let train = LabelSet::read(&yaml, Some(&folder.path().join("set/images/train"))).unwrap();
    let image = train.image(&train.find("a.jpg").unwrap().unwrap(), (100, 200)).unwrap();
    assert_eq!(image.objects[0].class, 0);
}

#[test]
fn a_list_of_pictures_stands_for_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        ("data.yaml", "val: val.txt\nnames: [a]\n"),
        ("val.txt", "./images/one.jpg\n./images/two.jpg\n"),
        ("labels/one.txt", "0 0.5 0.5 0.5 0.5\n"),
    ];
    write(folder.path(), &files);
    let labels = LabelSet::read(&folder.path().join("data.yaml"), None).unwrap();
    assert!(matches!(labels.find("one.jpg").unwrap(), Some(ImagePlace::Text(_))));
    assert!(matches!(labels.find("two.jpg").unwrap(), Some(ImagePlace::Empty(_))));
    assert_eq!(labels.find("three.jpg").unwrap(), None);
}

#[test]
fn lines_are_boxes_polygons_or_poses() {
    let read = |text: &str, keypoints| from_yolo_text(text, 2, keypoints, (100, 100));
    let square = read("0 0.1 0.1 0.3 0.1 0.3 0.3 0.1 0.3", None).unwrap().remove(0);
    assert_eq!((square.bounds, square.area), ([10.0, 10.0, 20.0, 20.0], 400.0));
    let pose = read("1 0.5 0.5 0.2 0.2 0.4 0.4 2 0 0 0", Some([2, 3])).unwrap().remove(0);
    assert_eq!(pose.keypoints, [[40.0, 40.0, 2.0], [0.0, 0.0, 0.0]]);
    assert!(!pose.without_keypoints);
    let pose = read("1 0.5 0.5 0.2 0.2 0.4 0.4 0 0", Some([2, 2])).unwrap().remove(0);
    assert_eq!(pose.keypoints[1][2], 0.0);
    let why = |text: &str, keypoints| read(text, keypoints).unwrap_err().to_string();
    assert!(why("\n2 0.5 0.5 0.1 0.1", None).contains("line 2: class 2; the classes are 0 to 1"));
    assert!(why("0 0.5 0.5 0.1", None).contains("a box has 5"));
    assert!(why("0 320 240 10 10", None).contains("outside the picture"));
    assert!(why("0 0.5 0.5 nan 0.1", None).contains("no number"));
    assert!(why("0 0.5 0.5 0.1 0.1", Some([17, 3])).contains("kpt_shape asks for 56"));
}

#[test]
fn what_is_wrong_with_a_yaml_is_said() {
    let why = |text: &str| classes_of_yaml(text).unwrap_err().to_string();
    assert!(why("").contains("empty"));
    assert!(why("train: x").contains("key names"));
    assert!(why("names: {0: a, 2: b}").contains("key names"), "a class is missing");
    assert!(why("a: &x [1]\nb: *x\nnames: [a]").contains("aliases"));
    assert!(why(&"[".repeat(20)).contains("too deep"));
    assert!(why(&"[".repeat(100_000)).contains("not YAML"), "the parser has a bound of its own");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[("data.yaml", "val: nowhere\nnames: [a]"), ("labels.csv", "")]);
    let read =
        |name: &str| LabelSet::read(&folder.path().join(name), None).unwrap_err().to_string();
    assert!(read("data.yaml").contains("none of its folders exists: nowhere"));
    assert!(read("labels.csv").contains("a COCO file (.json) or the data.yaml"));
    assert!(read("absent.json").contains("No such file"));
}

proptest! {
    #[test]
    fn any_lines_are_read_or_refused(text in "([0-9 .\n-]{0,60})") {
        drop(from_yolo_text(&text, 3, None, (20, 30)));
        drop(from_yolo_text(&text, 3, Some([2, 3]), (20, 30)));
    }

    #[test]
    fn any_yaml_is_read_or_refused(text in "\\PC{0,80}") {
        drop(classes_of_yaml(&text));
    }
}
