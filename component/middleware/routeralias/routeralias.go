// Package routeralias implements the middleware middleware.http.routeralias, which serves paths of the API under
// additional paths, called aliases.
//
// The package owns the syntax of aliases, and it rewrites the paths of requests. It has no goroutines.
package routeralias

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type.
const Type = "middleware.http.routeralias"

const metadataRoutes = "routes"

// Fields declares the metadata.
func Fields() []component.Field {
	return []component.Field{{Name: metadataRoutes, Required: true, Check: func(text string) error {
		_, err := parse(text)
		return err
	}}}
}

// Aliases rewrites the paths of requests that match an alias.
type Aliases struct {
	routes []route // patterns with fewer variables first
}

// route is one alias: a path pattern and the path that replaces it. The pattern may contain variables such as {id},
// each of which matches one path segment.
type route struct {
	from  []string
	to    string // escaped path
	query string // query of the replacement
}

// Open makes the middleware from its metadata.
func Open(v component.Values) (*Aliases, error) {
	routes, err := parse(v.Text(metadataRoutes))
	return &Aliases{routes}, err
}

// parse parses a JSON or YAML object that maps aliases to paths. It returns the routes in the order in which Filter
// tries them.
func parse(text string) ([]route, error) {
	table := map[string]string{}
	if json.Unmarshal([]byte(text), &table) != nil {
		if err := yaml.Unmarshal([]byte(text), &table); err != nil {
			return nil, refused("is not a mapping of paths in JSON or YAML")
		}
	}
	var out []route
	for from, to := range table {
		r := route{from: elements(from)}
		r.to, r.query, _ = strings.Cut(to, "?")
		if !strings.HasPrefix(from, "/") || !strings.HasPrefix(to, "/") {
			return nil, refused("has a route whose paths do not begin with /")
		}
		if _, err := url.ParseRequestURI(fill(r.to, func(string) string { return "x" })); err != nil {
			return nil, refused("has a route to " + to + ", which is not a path")
		}
		for _, name := range names(to) {
			if !slices.Contains(r.from, "{"+name+"}") {
				return nil, refused("has a route to " + to + ", and {" + name + "} is not in " + from)
			}
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b route) int { // fewer variables first, then by path
		if d := variables(a) - variables(b); d != 0 {
			return d
		}
		return strings.Compare(strings.Join(a.from, "/"), strings.Join(b.from, "/"))
	})
	return out, nil
}

func refused(text string) error { return fault.New(fault.Invalid, "routeralias.Open", text) }

func elements(path string) []string { return strings.Split(strings.Trim(path, "/"), "/") }

func variables(r route) (n int) {
	for _, e := range r.from {
		if isVariable(e) {
			n++
		}
	}
	return n
}

func isVariable(element string) bool {
	return len(element) > 2 && strings.HasPrefix(element, "{") && strings.HasSuffix(element, "}")
}

// names returns the names of the variables in to, the path that replaces an alias.
func names(to string) (out []string) {
	fill(to, func(name string) string { out = append(out, name); return "" })
	return out
}

// fill replaces each variable in to, the path that replaces an alias. The function value returns the text for a
// variable.
func fill(to string, value func(name string) string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(to, "{")
		b.WriteString(before)
		name, after, closed := strings.Cut(rest, "}")
		if !ok || !closed {
			return b.String()
		}
		b.WriteString(value(name))
		to = after
	}
}

// Filter implements middleware.Filter.
func (a *Aliases) Filter(r *http.Request) error {
	path := elements(r.URL.EscapedPath())
	for _, alias := range a.routes {
		if values, ok := alias.match(path); ok {
			alias.rewrite(r, values)
			return nil
		}
	}
	return nil
}

// match reports whether a path matches the pattern of the route. If so, it also returns the values of the variables, in
// escaped form.
func (a route) match(path []string) (map[string]string, bool) {
	if len(path) != len(a.from) {
		return nil, false
	}
	values := map[string]string{}
	for i, e := range a.from {
		switch {
		case isVariable(e) && path[i] != "":
			values[e[1:len(e)-1]] = path[i]
		case e != path[i]:
			return nil, false
		}
	}
	return values, true
}

// rewrite replaces the path of r with the path of the route, and inserts the values of the variables. If the route and
// the request both have a query, the route's query comes first.
func (a route) rewrite(r *http.Request, values map[string]string) {
	value := func(name string) string { return values[name] }
	escaped := fill(a.to, value)
	decoded, err := url.PathUnescape(escaped)
	if err != nil {
		return // cannot happen: both parts were parsed
	}
	query := fill(a.query, func(name string) string { return url.QueryEscape(unescape(values[name])) })
	if query != "" && r.URL.RawQuery != "" {
		query += "&"
	}
	r.URL.Path, r.URL.RawPath, r.URL.RawQuery = decoded, escaped, query+r.URL.RawQuery
	r.RequestURI = escaped
	if r.URL.RawQuery != "" {
		r.RequestURI += "?" + r.URL.RawQuery
	}
}

func unescape(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}
