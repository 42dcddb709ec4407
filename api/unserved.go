package api

import (
	"slices"
	"strings"
)

// block is a building block of Dapr that Quorate does not serve, or serves only in part.
type block struct {
	name, instead string
	// parts limits the block to paths that contain one of these texts; nil = all paths. Quorate serves the other paths
	parts []string
}

// unservedBlocks maps the first part of a path after the version to its block.
func unservedBlocks() map[string]block {
	crypto := block{name: "cryptography", instead: "use a library in the application, with a key from a secret store"}
	return map[string]block{
		"crypto":       crypto,
		"subtlecrypto": crypto,
		"conversation": {name: "conversations",
			instead: "call the language model through a binding of type bindings.http"},
		"state": {name: "state queries", instead: "list keys with GET /v1.0/state/{store}?prefix=",
			parts: []string{"/query"}},
	}
}

// serves reports whether the building block b serves a path in Dapr. Quorate does not serve such a path. remainder is
// the part of the path after the name of the building block.
func (b block) serves(remainder string) bool {
	return remainder != "" && (b.parts == nil ||
		slices.ContainsFunc(b.parts, func(part string) bool { return strings.Contains(remainder, part) }))
}

// daprVersions lists the versions with which the paths of Dapr's API begin.
func daprVersions() []string {
	return []string{"v1.0", "v1.0-alpha1", "v1.0-alpha2", "v1.0-beta1"}
}

// PathNotFound returns the error for a path that has no endpoint. If the path belongs to a part of Dapr's API that
// Quorate does not serve, the message names this part and an alternative.
func PathNotFound(path string) error {
	for _, version := range daprVersions() {
		rest, ok := strings.CutPrefix(path, "/"+version+"/")
		if !ok {
			continue
		}
		word, after, _ := strings.Cut(rest, "/")
		b, known := unservedBlocks()[word]
		if !known || !b.serves(after) {
			break
		}
		return &Error{Kind: NotServed, Code: CodeNotImplemented, Details: Details{Reason: ReasonUnsupported},
			Message: "Quorate does not serve this path of the building block " + b.name + " (" + b.instead + ")"}
	}
	return &Error{Kind: NotFound, Code: CodeNotFound, Message: "no endpoint has the path " + Shorten(path)}
}
