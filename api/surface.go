package api

import (
	"strings"
	"sync/atomic"

	"github.com/quorate/quorate/component"
)

// Surface decides which parts of the API the node serves, according to the api section of a Configuration resource.
// The zero value and a nil *Surface permit everything. It is safe for concurrent use.
type Surface struct {
	rules atomic.Pointer[component.APIRules]
}

// Set replaces the rules. If r is nil, the node serves everything.
func (s *Surface) Set(r *component.APIRules) { s.rules.Store(r) }

// HTTP returns an error if the Configuration resource disables an endpoint. path is the pattern of the endpoint, such
// as "/v1.0/state/{store}". A rule with the version v1.0 and the name state matches all paths that begin with
// "/v1.0/state".
func (s *Surface) HTTP(path string) error {
	if s == nil || s.rules.Load() == nil {
		return nil // the common case
	}
	return s.check("http", func(r component.APIRule) bool {
		return strings.HasPrefix(path, "/"+r.Version+"/"+r.Name)
	}, "/"+strings.Join(strings.Split(strings.Trim(path, "/"), "/")[:2], "/"))
}

// GRPC returns an error if the Configuration resource disables a method of the Dapr service. method is the name of the
// method without the service.
func (s *Surface) GRPC(method string) error {
	group, version := GroupOf(method)
	return s.check("grpc", func(r component.APIRule) bool { return r.Name == group && r.Version == version }, method)
}

func (s *Surface) check(protocol string, matches func(component.APIRule) bool, what string) error {
	if s == nil || s.rules.Load() == nil {
		return nil
	}
	any := func(rules []component.APIRule) (listed, matched bool) {
		for _, r := range rules {
			if r.Protocol == protocol {
				listed, matched = true, matched || matches(r)
			}
		}
		return listed, matched
	}
	rules := s.rules.Load()
	if _, denied := any(rules.Denied); denied {
		return notAllowed(what)
	}
	if listed, allowed := any(rules.Allowed); listed && !allowed {
		return notAllowed(what)
	}
	return nil
}

func notAllowed(what string) error {
	return &Error{Kind: NotFound, Code: CodeNotFound, Details: Details{Reason: ReasonDenied},
		Message: "requested endpoint is not available: " + what + " is excluded by spec.api of the Configuration"}
}

// GroupOf returns the group and the version of a method of the Dapr service, as the rules of a Configuration resource
// name them. For example, TryLockAlpha1 has the group "lock" and the version "v1alpha1". group is "" if the method
// belongs to no group.
func GroupOf(method string) (group, version string) {
	version = "v1"
	for _, suffix := range []string{"Alpha1", "Alpha2", "Beta1"} {
		if strings.HasSuffix(method, suffix) {
			version = "v1" + strings.ToLower(suffix)
		}
	}
	for _, g := range grpcGroups() {
		for _, part := range g.parts {
			if strings.Contains(method, part) {
				return g.name, version
			}
		}
	}
	return "", version
}

type grpcGroup struct {
	name  string
	parts []string // parts of method names
}

// grpcGroups lists the groups of methods of the Dapr service. The group of a method is the first one whose field parts
// has a text that occurs in the name of the method.
func grpcGroups() []grpcGroup {
	return []grpcGroup{
		{"watch", []string{"Watch"}},
		{"actors", []string{"Actor"}},
		{"invoke", []string{"InvokeService"}},
		{"bindings", []string{"InvokeBinding"}},
		{"publish", []string{"PublishEvent"}},
		{"subscribe", []string{"SubscribeTopicEvents"}},
		{"secrets", []string{"Secret"}},
		{"configuration", []string{"Configuration"}},
		{"metadata", []string{"Metadata"}},
		{"shutdown", []string{"Shutdown"}},
		{"lock", []string{"TryLock"}},
		{"unlock", []string{"UnlockAlpha"}},
		{"subtlecrypto", []string{"Subtle"}},
		{"crypto", []string{"EncryptAlpha", "DecryptAlpha"}},
		{"workflows", []string{"Workflow"}},
		{"jobs", []string{"Job"}},
		{"conversation", []string{"Converse"}},
		{"state", []string{"State"}},
	}
}

// MethodNotServed returns the error text for a Dapr method that Quorate does not serve. If Quorate has an alternative
// to the building block of the method, the text names the block and the alternative. Otherwise the text lists the
// building blocks that Quorate serves.
func MethodNotServed(method string) string {
	group, _ := GroupOf(method)
	if group == "subscribe" {
		group = "publish"
	}
	if b, ok := unservedBlocks()[group]; ok {
		return "Quorate does not serve " + method + " of the building block " + b.name + " (" + b.instead + ")"
	}
	return "Quorate does not serve " + method +
		": it serves state, actors, publish and subscribe, workflows, secrets, invocation, bindings, locks, jobs, " +
		"configuration, metadata and shutdown"
}
