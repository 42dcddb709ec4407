package component

import (
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// docParser reads one document and collects its problems.
type docParser struct {
	file     string
	problems Problems
}

// fields maps the allowed fields of a mapping to their readers.
type fields map[string]func(*yaml.Node)

func (p *docParser) document(raw *yaml.Node) Document {
	x := expander{file: p.file, problems: &p.problems}
	body := x.expand(raw, 0)
	doc := Document{Kind: Kind(topText(body, "kind")), APIVersion: topText(body, "apiVersion"), Pos: p.pos(raw),
		Body: body}
	if doc.Kind == KindComponent {
		doc.Component = &Spec{Pos: doc.Pos, Version: DefaultVersion, InitTimeout: DefaultInitTimeout}
	}
	// After a limit was exceeded the copy is incomplete, and further problems would be misleading.
	if x.stopped {
		return doc
	}
	p.header(&doc)
	return doc
}

// header reads the fields that all kinds of documents have, and the fields spec and auth of a component. For other
// kinds of documents, functions such as ParseConfiguration read spec and auth later.
func (p *docParser) header(doc *Document) {
	ignore := func(*yaml.Node) {}
	known := fields{
		"apiVersion": ignore,
		"kind":       ignore,
		"status":     ignore, // documents exported from Kubernetes have this field
		"metadata":   func(n *yaml.Node) { p.docMetadata(n, doc) },
		"scopes":     func(n *yaml.Node) { doc.Scopes = p.texts(n, "scopes") },
	}
	if doc.Component == nil {
		p.lenient(doc.Body, known)
	} else {
		known["spec"] = func(n *yaml.Node) { p.spec(n, doc.Component) }
		known["auth"] = func(n *yaml.Node) { p.auth(n, doc.Component) }
		p.readFields(doc.Body, "", known)
	}
	p.name(doc)
	if spec := doc.Component; spec != nil {
		spec.Name, spec.Namespace, spec.Scopes = doc.Name, doc.Namespace, doc.Scopes
		if spec.Type == "" {
			p.problems.add(doc.Pos, "for instance type: state.raft", "spec.type is missing")
		}
	}
}

// name reports a problem if the name of the document is missing or invalid, unless there already is a problem at the
// position of the name.
func (p *docParser) name(doc *Document) {
	at := p.namePos(doc)
	problem := nameProblem(doc.Name)
	switch {
	case problem == "" || slices.ContainsFunc(p.problems, func(known Problem) bool { return known.Pos == at }):
	case doc.Name == "":
		p.problems.add(at, "", "metadata.name is missing")
	default:
		p.problems.add(at, "", "metadata.name %q %s", doc.Name, problem)
	}
}

func (p *docParser) namePos(doc *Document) Pos {
	if meta := child(doc.Body, "metadata"); meta != nil {
		if name := child(meta, "name"); name != nil {
			return p.pos(name)
		}
		return p.pos(meta)
	}
	return doc.Pos
}

func (p *docParser) docMetadata(n *yaml.Node, doc *Document) {
	free := func(*yaml.Node) {}
	known := fields{
		"name":        func(n *yaml.Node) { doc.Name = p.text(n, "metadata.name") },
		"namespace":   func(n *yaml.Node) { doc.Namespace = p.text(n, "metadata.namespace") },
		"labels":      free,
		"annotations": free,
	}
	for _, name := range kubernetesMetadata() {
		known[name] = free
	}
	p.readFields(n, "metadata", known)
}

// kubernetesMetadata returns the names of the fields that Kubernetes adds to the metadata of a document. The parser
// ignores these fields, so documents exported from Kubernetes can be loaded unchanged.
func kubernetesMetadata() []string {
	return []string{"creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
		"generateName", "generation", "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid"}
}

func (p *docParser) spec(n *yaml.Node, s *Spec) {
	p.readFields(n, "spec", fields{
		"type": func(n *yaml.Node) {
			s.Type, s.TypePos = p.text(n, "spec.type"), p.pos(n)
		},
		"version": func(n *yaml.Node) {
			if v := p.text(n, "spec.version"); v != "" {
				s.Version = v
			}
		},
		"ignoreErrors": func(n *yaml.Node) { s.IgnoreErrors = p.boolean(n, "spec.ignoreErrors") },
		"initTimeout":  func(n *yaml.Node) { s.InitTimeout = p.duration(n, "spec.initTimeout") },
		"metadata":     func(n *yaml.Node) { s.Metadata = p.items(n) },
	})
}

func (p *docParser) auth(n *yaml.Node, s *Spec) {
	p.readFields(n, "auth", fields{
		"secretStore": func(n *yaml.Node) { s.SecretStore = p.text(n, "auth.secretStore") },
	})
}

func (p *docParser) items(n *yaml.Node) []Item {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.problems.add(p.pos(n), "", "spec.metadata must be a list of name and value, not %s", describe(n))
		return nil
	}
	items := make([]Item, 0, len(n.Content))
	seen := make(map[string]int, len(n.Content))
	for _, element := range n.Content {
		item := p.item(element)
		if item.Name == "" {
			continue
		}
		folded := strings.ToLower(item.Name)
		if first, ok := seen[folded]; ok {
			p.problems.add(item.Pos, "", "metadata %q is given twice; first in line %d", item.Name, first)
			continue
		}
		seen[folded] = item.Pos.Line
		items = append(items, item)
	}
	return items
}

// item reads one element of spec.metadata. If the element has no name, Item.Name is empty.
func (p *docParser) item(n *yaml.Node) Item {
	item := Item{Pos: p.pos(n)}
	var given []string
	sources := fields{
		"value":        func(n *yaml.Node) { item.Value, item.Bare = p.value(n), isBare(n) },
		"secretKeyRef": func(n *yaml.Node) { item.Secret = p.secretRef(n) },
		"envRef":       func(n *yaml.Node) { item.Env = p.required(n, "envRef") },
	}
	all := fields{"name": func(n *yaml.Node) { item.Name = p.required(n, "name") }}
	for name, read := range sources {
		all[name] = func(n *yaml.Node) {
			if name != "value" && isBlank(n) {
				return // a document exported from Kubernetes has empty fields for the references that it does not use
			}
			given = append(given, name)
			read(n)
		}
	}
	if !p.readFields(n, "an element of spec.metadata", all) {
		return item
	}
	switch {
	case child(n, "name") == nil:
		p.problems.add(item.Pos, "", "an element of spec.metadata has no name")
	case len(given) == 0:
		p.problems.add(item.Pos, "give value, secretKeyRef or envRef", "metadata %q has no value", item.Name)
	case len(given) > 1:
		p.problems.add(item.Pos, "give one of them", "metadata %q has both %s", item.Name, strings.Join(given, " and "))
	}
	return item
}

// isBlank reports whether a reference is empty: it is null, an empty string, or a mapping with only empty fields.
func isBlank(n *yaml.Node) bool {
	if n.Kind == yaml.MappingNode {
		for i := 1; i < len(n.Content); i += 2 {
			if !isBlank(n.Content[i]) {
				return false
			}
		}
		return true
	}
	return n.Kind == yaml.ScalarNode && (isNull(n) || n.Value == "")
}

func (p *docParser) secretRef(n *yaml.Node) *SecretRef {
	ref := &SecretRef{}
	ok := p.readFields(n, "secretKeyRef", fields{
		"name": func(n *yaml.Node) { ref.Name = p.required(n, "secretKeyRef.name") },
		"key":  func(n *yaml.Node) { ref.Key = p.text(n, "secretKeyRef.key") },
	})
	if ok && child(n, "name") == nil {
		p.problems.add(p.pos(n), "", "secretKeyRef has no name")
	}
	if ref.Key == "" {
		ref.Key = ref.Name
	}
	return ref
}

func (p *docParser) boolean(n *yaml.Node, what string) bool {
	text := p.text(n, what)
	switch strings.ToLower(text) {
	case "true":
		return true
	case "false", "":
		return false
	}
	p.problems.add(p.pos(n), "use true or false", "%s is %q", what, text)
	return false
}

func (p *docParser) duration(n *yaml.Node, what string) time.Duration {
	text := p.text(n, what)
	if text == "" {
		return DefaultInitTimeout
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		p.problems.add(p.pos(n), "use a positive duration such as 5s or 1m30s", "%s is %q", what, text)
		return DefaultInitTimeout
	}
	return d
}

func (p *docParser) pos(n *yaml.Node) Pos { return Pos{File: p.file, Line: n.Line} }
