package component

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
	"github.com/quorate/quorate/internal/userfile"
)

// MaxFileSize is the largest file that Parse reads, in bytes.
const MaxFileSize = 1 << 20

// File is the result of parsing one file.
type File struct {
	Documents []Document
	Skipped   []Problem // documents that are ignored, and why
}

// Parse parses a file of YAML documents. The name is used only in messages. Empty documents are ignored, and documents
// of unknown kinds are listed in File.Skipped.
//
// A problem in a document makes the whole file invalid, except that the problems of a component with ignoreErrors are
// in Document.Err. The error is fault.Invalid and lists up to 20 problems with file and line. If r fails, the error is
// fault.Internal.
func Parse(name string, r io.Reader) (File, error) {
	const op = "component.Parse"
	data, err := io.ReadAll(io.LimitReader(r, MaxFileSize+1))
	if err != nil {
		return File{}, &fault.Error{Code: fault.Internal, Op: op, Msg: "reading " + name, Key: name, Err: err}
	}
	var problems Problems
	if len(data) > MaxFileSize {
		problems.add(Pos{File: name}, "split it", "the file has more than %d bytes", MaxFileSize)
		return File{}, problems.Err(op)
	}
	var file File
	dec := yaml.NewDecoder(bytes.NewReader(userfile.YAML(data)))
	for {
		var root yaml.Node
		err := dec.Decode(&root)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			problems = append(problems, syntaxProblem(name, err))
			break
		}
		problems = append(problems, file.add(name, &root)...)
	}
	if err := problems.Err(op); err != nil {
		return File{}, err
	}
	return file, nil
}

// syntaxProblem returns the problem for a syntax error of the YAML library. It takes the line number from the error
// text, such as "yaml: line 3: ...". name is the name of the file.
func syntaxProblem(name string, err error) Problem {
	pos := Pos{File: name}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if digits, after, ok := strings.Cut(rest, ": "); ok {
			if line, err := strconv.Atoi(digits); err == nil {
				pos.Line, text = line, after
			}
		}
	}
	return Problem{Pos: pos, Text: "this is not YAML: " + text}
}

// add parses one document and adds it to f.Documents or f.Skipped. It returns the problems that make the file
// invalid.
func (f *File) add(name string, root *yaml.Node) Problems {
	body := root
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		body = root.Content[0]
	}
	if isEmpty(body) {
		return nil
	}
	verdict, why := sift(body)
	pos := Pos{File: name, Line: body.Line}
	switch verdict {
	case skip:
		f.Skipped = append(f.Skipped, Problem{Pos: pos, Text: "skipped: " + why})
		return nil
	case refuse:
		return Problems{{Pos: pos, Text: why}}
	}
	p := docParser{file: name}
	doc := p.document(body)
	p.problems.order(doc)
	if len(p.problems) > 0 && doc.Component != nil && doc.Component.IgnoreErrors && nameProblem(doc.Name) == "" {
		doc.Err = p.problems.Err("component.Parse")
		p.problems = nil
	}
	f.Documents = append(f.Documents, doc)
	return p.problems
}

func isEmpty(n *yaml.Node) bool {
	return n.Kind == 0 || n.Kind == yaml.DocumentNode || n.Kind == yaml.ScalarNode && n.Tag == "!!null"
}

type verdict int

const (
	accept verdict = iota
	skip
	refuse
)

// sift decides by kind and apiVersion whether a document is for Quorate. If it is not, sift also returns the reason. A
// kind or apiVersion that looks misspelt is an error, because the user would notice a skipped document much later.
func sift(body *yaml.Node) (verdict, string) {
	if body.Kind != yaml.MappingNode {
		return skip, "the document is not a mapping"
	}
	kind, apiVersion := topText(body, "kind"), topText(body, "apiVersion")
	group, ours := strings.CutSuffix(apiVersion, "/v1alpha1")
	if Kind(kind) == KindSubscription && !ours {
		group, ours = strings.CutSuffix(apiVersion, "/v2alpha1")
	}
	if Kind(kind) == KindSubscription && (!ours || group != "dapr.io" && group != "quorate.dev") {
		return skip, fmt.Sprintf("apiVersion %s of kind %s is not dapr.io/v1alpha1 or dapr.io/v2alpha1", apiVersion,
			kind)
	}
	ours = ours && group != ""
	known := knownKind(kind)
	switch {
	case known && ours:
		return accept, ""
	case known && (apiVersion == "" || !strings.Contains(apiVersion, "/")):
		return refuse, fmt.Sprintf("kind %s needs an apiVersion of the form <group>/v1alpha1, not %q", kind, apiVersion)
	case known:
		return skip, fmt.Sprintf("apiVersion %s of kind %s is not <group>/v1alpha1", apiVersion, kind)
	case ours && kind == "":
		return refuse, fmt.Sprintf("the document has apiVersion %s but no kind", apiVersion)
	case ours:
		if near := suggest.For(kind, kindNames()); near != "" {
			return refuse, fmt.Sprintf("kind %q is unknown; did you mean %s?", kind, near)
		}
	}
	if kind == "" {
		return skip, "the document has no kind"
	}
	return skip, fmt.Sprintf("kind %q is not one of %s", kind, strings.Join(kindNames(), ", "))
}

func kindNames() []string {
	return []string{string(KindComponent), string(KindConfiguration), string(KindHTTPEndpoint), string(KindResiliency),
		string(KindSubscription)}
}

func knownKind(kind string) bool {
	switch Kind(kind) {
	case KindComponent, KindConfiguration, KindResiliency, KindHTTPEndpoint, KindSubscription:
		return true
	}
	return false
}

// topText returns the scalar with the given key in a mapping, or "" if there is none. Aliases in the mapping need not
// be expanded.
func topText(body *yaml.Node, key string) string {
	for i := 0; i+1 < len(body.Content); i += 2 {
		value := body.Content[i+1]
		if value.Kind == yaml.AliasNode && value.Alias != nil {
			value = value.Alias
		}
		if body.Content[i].Value == key && value.Kind == yaml.ScalarNode {
			return value.Value
		}
	}
	return ""
}
