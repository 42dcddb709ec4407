// Package component is the vocabulary of pluggable parts: what a component file says,
// what a component may declare about its metadata, and how the two are brought together.
//
// It owns the YAML form of component documents, the rules for names, references and
// placeholders, the check of metadata against declared fields, the registry (type string
// to factory) and the status of a loaded component. It must never know a particular
// component, a building block's contract, HTTP or raft; it reads no environment, clock or
// random source but the ones it is handed. It starts no goroutines; its values are
// immutable once made and safe to share.
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

// The kinds that are recognised. Documents of other kinds are left to other programs.
const (
	KindComponent     Kind = "Component"
	KindConfiguration Kind = "Configuration"
	KindResiliency    Kind = "Resiliency"
	KindHTTPEndpoint  Kind = "HTTPEndpoint"
)

// DefaultInitTimeout bounds the opening of a component that says nothing about it.
const DefaultInitTimeout = 5 * time.Second

// DefaultVersion is what a component's version means when it is left out.
const DefaultVersion = "v1"

// Document is one recognised document of a file.
type Document struct {
	Kind       Kind
	APIVersion string
	Name       string
	Namespace  string   // empty = none given
	Scopes     []string // app ids it is meant for; empty = all
	Pos        Pos      // where the document begins

	// Body is the whole document as a mapping, with unique keys, aliases replaced by what
	// they stand for, and the lines of the file. It must not be modified.
	Body *yaml.Node

	// Component is set for KindComponent only.
	Component *Spec

	// Err tells what is wrong with a component that says ignoreErrors: true; Component is
	// incomplete then and must not be opened. Problems of all other documents are errors
	// of Parse.
	Err error
}

// Spec is what a component document says.
type Spec struct {
	Name         string
	Namespace    string
	Type         string // as written; compare with SameType or through a Registry
	Version      string // as written; DefaultVersion when left out
	Scopes       []string
	SecretStore  string // auth.secretStore: where secretKeyRef looks; empty = none
	IgnoreErrors bool
	InitTimeout  time.Duration
	Metadata     []Item
	Pos          Pos // where the document begins
	TypePos      Pos // where spec.type stands
}

// Item is one element of spec.metadata: a name and exactly one of a plain value, a
// reference to a secret and a reference to an environment variable.
type Item struct {
	Name   string
	Value  string     // plain value: scalars as written, mappings and sequences as JSON text
	Bare   bool       // Value is no string to YAML: a number or truth value without quotes
	Secret *SecretRef // nil = not from a secret store
	Env    string     // empty = not from the environment
	Pos    Pos
}

// SecretRef names one key of one secret of the component's secret store.
type SecretRef struct {
	Name string // of the secret
	Key  string // within the secret; the secret's name when left out
}

// InScope reports whether the document is meant for at least one of apps.
func (d Document) InScope(apps []string) bool { return inScope(d.Scopes, apps) }

// InNamespace reports whether the document belongs to a node of the given namespace: it
// does unless both name one and they differ.
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

// SameType reports whether two type strings mean the same; case does not matter.
func SameType(a, b string) bool { return strings.EqualFold(a, b) }

// SameVersion reports whether two versions mean the same: case does not matter, and "",
// "v0" and "v1" are one.
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

// nameProblem says what is wrong with the name of a document, or nothing. A name becomes
// a path segment, a metric label and, with keyPrefix "name", the prefix of stored keys.
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
