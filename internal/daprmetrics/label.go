package daprmetrics

import (
	"net/http"
	"strings"
	"sync"
)

// maxValues limits the number of different values of a label whose values clients choose. Each further value is
// replaced by "other". Dapr has no such limit.
const maxValues = 1000

const other = "other"

// bounded stores the values of a label whose values clients choose, up to maxValues.
type bounded struct {
	mu    sync.RWMutex
	known map[string]struct{} // guarded by mu
}

func newBounded() *bounded { return &bounded{known: map[string]struct{}{}} }

// label returns value as a label value, or "other" if the label already has too many values. It replaces bytes that
// are not UTF-8 with question marks, because Prometheus refuses them.
func (b *bounded) label(value string) string {
	value = strings.ToValidUTF8(value, "?")
	b.mu.RLock()
	_, ok := b.known[value]
	full := len(b.known) >= maxValues
	b.mu.RUnlock()
	switch {
	case ok:
		return value
	case full:
		return other
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.known) >= maxValues {
		return other
	}
	b.known[strings.Clone(value)] = struct{}{}
	return value
}

// path returns the label value for the path of a request:
//
//   - the configured pattern that matches the path, if there is one
//   - otherwise "", if Options.Paths is false
//   - otherwise the path itself. As in Dapr, keys and ids are removed from paths of the API.
func (m *Metrics) path(path string) string {
	if pattern := m.options().Patterns.Match(path); pattern != "" {
		return pattern
	}
	if !m.options().Paths {
		return ""
	}
	return m.paths.label(template(path))
}

// template returns path without the variable parts of API paths. It replaces the ids of actors with {id}. It cuts
// paths of state and secrets after the name of the store.
func template(path string) string {
	parts := strings.SplitN(strings.TrimPrefix(path, "/"), "/", 6)
	if len(parts) < 3 {
		return path
	}
	switch {
	case parts[0] == "actors":
		parts[2] = "{id}"
		return strings.Join(parts, "/")
	case parts[1] == "state", parts[1] == "secrets":
		return "/" + strings.Join(parts[:3], "/")
	case parts[1] == "actors" && len(parts) >= 5:
		parts[3] = "{id}"
		return "/" + strings.Join(parts[:5], "/")
	}
	return path
}

// verb returns the label for an HTTP method. It returns "" if Options.ExcludeVerbs is set, and "UNKNOWN" for an
// unusual method.
func (m *Metrics) verb(verb string) string {
	if m.options().ExcludeVerbs {
		return ""
	}
	switch verb {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return verb
	}
	return "UNKNOWN"
}
