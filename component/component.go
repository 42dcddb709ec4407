// Package component defines component files and the metadata fields that component types declare.
//
// The package owns the YAML form of documents, the rules for names, references and placeholders, and the check of
// metadata against the declared fields. It also owns the registry that maps types to factories, and the status of a
// loaded component. Nothing in the package is specific to one component type.
//
// The package starts no goroutines. Its values are immutable and safe for concurrent use, except that
// Document.ExpandEnv modifies a document.
package component

import (
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Kind is the kind of a document.
type Kind string

// The recognised kinds. Documents of any other kind are skipped, except that a kind which looks misspelt is an error.
const (
	KindComponent     Kind = "Component"
	KindConfiguration Kind = "Configuration"
	KindResiliency    Kind = "Resiliency"
	KindHTTPEndpoint  Kind = "HTTPEndpoint"
	KindSubscription  Kind = "Subscription"
)

// DefaultInitTimeout bounds the opening of a component without initTimeout.
const DefaultInitTimeout = 5 * time.Second

// DefaultVersion is the version of a component that does not set one.
const DefaultVersion = "v1"

// Document is one document of a file, whose kind is one of the constants of type Kind.
type Document struct {
	Kind       Kind
	APIVersion string
	Name       string
	Namespace  string   // empty = the document has none
	Scopes     []string // ids of the applications that the document is for; empty = all
	Pos        Pos      // where the document begins

	// Body is the whole document as a mapping with unique keys, aliases expanded, and the lines of the file. Only
	// ExpandEnv may modify it.
	Body *yaml.Node

	// Component is set for KindComponent only.
	Component *Spec

	// Err lists the problems of a component with ignoreErrors: true; nil = none. If it is set, Component is
	// incomplete and must not be opened. The problems of all other documents are errors of Parse.
	Err error
}

// Spec is the content of a component document.
type Spec struct {
	Name         string
	Namespace    string
	Type         string // as written; compare with SameType or through a Registry
	Version      string // as written; DefaultVersion when left out
	Scopes       []string
	SecretStore  string // auth.secretStore: the secret store for secretKeyRef; empty = none
	IgnoreErrors bool
	InitTimeout  time.Duration
	Metadata     []Item
	Pos          Pos // where the document begins
	TypePos      Pos // position of spec.type
}

// Item is one element of spec.metadata. It has a name and one of these: a plain value, a reference to a secret, or a
// reference to an environment variable.
type Item struct {
	Name   string
	Value  string     // plain value: scalars as written, mappings and sequences as JSON text
	Bare   bool       // Value is not a YAML string: a number or boolean without quotes
	Secret *SecretRef // nil = not from a secret store
	Env    string     // empty = not from the environment
	Pos    Pos
}

// SecretRef names a secret in the component's secret store, and one key of this secret.
type SecretRef struct {
	Name string // name of the secret
	Key  string // key within the secret; when left out, the name of the secret
}

// InScope reports whether the document is for at least one of the given applications. A document without scopes is for
// all applications.
func (d Document) InScope(apps []string) bool { return inScope(d.Scopes, apps) }

// InNamespace reports whether the document applies to a node in the given namespace. This is true if the document and
// the node have the same namespace, or if either has none.
func (d Document) InNamespace(namespace string) bool {
	return namespace == "" || d.Namespace == "" || namespace == d.Namespace
}

func inScope(scopes, apps []string) bool {
	if len(scopes) == 0 {
		return true
	}
	for _, scope := range scopes {
		for _, app := range apps {
			if scope == app {
				return true
			}
		}
	}
	return false
}

// SameType reports whether two type strings are the same. Case is ignored.
func SameType(a, b string) bool { return strings.EqualFold(a, b) }

// SameVersion reports whether two versions of a component type are equal. It ignores case, and treats "", "v0" and
// "v1" as equal.
func SameVersion(a, b string) bool { return foldVersion(a) == foldVersion(b) }

func foldVersion(version string) string {
	switch v := strings.ToLower(version); v {
	case "", "v0", "v1":
		return DefaultVersion
	default:
		return v
	}
}

// maxName is the longest name of a component, in bytes.
const maxName = 253

// nameProblem returns what is wrong with a document name, or "" if the name is valid. Names are restricted because they
// are used in paths, metric labels and stored keys.
func nameProblem(name string) string {
	switch {
	case name == "":
		return "is empty"
	case name == "." || name == "..":
		return "cannot stand in a path"
	case len(name) > maxName:
		return "is longer than " + strconv.Itoa(maxName) + " bytes"
	case strings.ContainsAny(name, "/%|"):
		return "contains one of / % |"
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unsuitable):
		return "contains white space or a control character"
	}
	return ""
}

func unsuitable(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }
