package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
	"github.com/quorate/quorate/internal/userfile"
	"github.com/quorate/quorate/node"
)

// The keys that have no flag: the list of applications, and the scheduled backups.
const (
	appsKey   = "apps"
	backupKey = "backup"
)

// readFile reads the settings file, and sets the settings in it that no flag or variable has set. It checks all values
// in the file, even those that it does not use.
func (s *Set) readFile(in Input) []error {
	text, err := in.ReadFile(s.files.settings)
	if err != nil {
		return []error{&fault.Error{Code: fault.Invalid, Op: "settings.File", Msg: "the settings file cannot be read",
			Err: err, Key: s.files.settings}}
	}
	r, scratch := fileReader{name: s.files.settings}, New()
	if root := r.parse(text); root != nil {
		r.readFields(root, func(key, v *yaml.Node) []string {
			switch key.Value {
			case appsKey:
				s.config.Apps = r.apps(v)
				return nil
			case backupKey:
				r.section(v, backupTable(&s.config.Backup))
				return nil
			}
			return r.entry(scratch.settings, key, v, appsKey, backupKey)
		})
	}
	for i, st := range s.settings {
		if from := scratch.settings[i]; from.source.Kind == "file" && st.source.Kind == "default" {
			st.source = from.source
			for _, text := range from.texts {
				_ = st.value.set(text) // set cannot fail, because the copy accepted the text
			}
		}
	}
	return r.errs
}

// fileReader reads one settings file and collects its problems.
type fileReader struct {
	name string
	errs []error
}

func (r *fileReader) fail(at *yaml.Node, hint, format string, args ...any) {
	msg := fmt.Sprintf("%s:%d: ", r.name, at.Line) + fmt.Sprintf(format, args...)
	r.errs = append(r.errs, &fault.Error{Code: fault.Invalid, Op: "settings.File", Msg: msg, Hint: hint, Key: r.name})
}

// parse returns the document of a file, or nil if the file is empty or unreadable.
func (r *fileReader) parse(text []byte) *yaml.Node {
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(userfile.YAML(text)))
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		if err = d.Decode(&more); err == nil {
			r.fail(&more, "keep one document", "a settings file has one document; this is a second one")
			return nil
		}
	}
	if !errors.Is(err, io.EOF) {
		r.errs = append(r.errs, &fault.Error{Code: fault.Invalid, Op: "settings.File", Msg: r.name + " is not YAML",
			Err: err, Key: r.name})
		return nil
	}
	return doc.Content[0]
}

// readFields calls entry for each key of the YAML mapping n. If entry knows the key, it must return nil. Otherwise it
// returns the known keys, and readFields reports the key as unknown.
func (r *fileReader) readFields(n *yaml.Node, entry func(key, v *yaml.Node) (known []string)) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // the file has only comments
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "write lines as httpPort: 3500", "a list of settings is expected here")
		return
	}
	seen := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, v := n.Content[i], n.Content[i+1]
		if line, twice := seen[key.Value]; twice {
			r.fail(key, "keep one", "%q is set twice, first in line %d", key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		if known := entry(key, v); known != nil {
			r.unknown(key, known)
		}
	}
}

func (r *fileReader) unknown(key *yaml.Node, known []string) {
	hint := "quorate run --help lists the settings"
	if near := suggest.For(key.Value, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	r.fail(key, hint, "there is no setting %q", key.Value)
}

// entry sets the setting with the given key to the value v, and returns nil. If there is no such setting, it returns
// all known keys: those of the settings, and those in others.
func (r *fileReader) entry(settings []*Setting, key, v *yaml.Node, others ...string) (known []string) {
	known = others
	for _, st := range settings {
		switch st.Key {
		case key.Value:
			st.source = Source{Kind: "file", Where: fmt.Sprintf("%s:%d", r.name, key.Line)}
			r.assign(st, v)
			return nil
		case "":
		default:
			known = append(known, st.Key)
		}
	}
	return known
}

// assign sets a setting to a value of the file.
func (r *fileReader) assign(st *Setting, v *yaml.Node) {
	if v.Kind == yaml.SequenceNode && st.value.list {
		for _, e := range v.Content {
			r.assign(st, e)
		}
		return
	}
	if v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
		r.fail(v, "give a value, or remove the key", "%s has no usable value", st.Key)
		return
	}
	if err := st.value.set(v.Value); err != nil {
		r.fail(v, err.Error(), "%s %q is refused", st.Key, v.Value)
		return
	}
	st.texts = append(st.texts, v.Value)
}

// section reads a YAML mapping whose keys are the keys of the given settings.
func (r *fileReader) section(n *yaml.Node, settings []*Setting) {
	r.readFields(n, func(key, v *yaml.Node) []string { return r.entry(settings, key, v) })
}

// apps reads the list of applications.
func (r *fileReader) apps(n *yaml.Node) []node.AppEntry {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, `write "- id: orders" below it`, "apps is a list")
		return nil
	}
	out := make([]node.AppEntry, len(n.Content))
	for i, e := range n.Content {
		r.section(e, appTable(&out[i]))
		if out[i].ID == "" {
			r.fail(e, "give the application an id", "an application has no id")
		}
	}
	return out
}
