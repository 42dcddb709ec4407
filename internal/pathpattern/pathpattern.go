// Package pathpattern matches paths with patterns such as /orders/{id}, so that metrics can group requests.
//
// It owns the router that finds the pattern of a path. The router serves no requests. The package has no goroutines.
package pathpattern

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Set is a set of patterns. It is safe for concurrent use. The zero value has no patterns.
type Set struct{ mux *http.ServeMux }

// registered matches the part of a ServeMux error that says where in the source code a pattern was registered. That
// place is always a line of this package, which does not help the user.
var registered = regexp.MustCompile(` \(registered at [^)]*\)`)

// New returns a set of patterns in the syntax of http.ServeMux, without verb and host. As in Dapr, each pattern also
// matches the paths of calls to other applications. For example, /orders/{id} also matches
// /v1.0/invoke/shop/method/orders/7. New returns fault.Invalid if two patterns conflict or a pattern has a syntax
// error.
func New(patterns []string) (s Set, err error) {
	defer func() { // ServeMux reports a bad pattern with a panic
		if why := recover(); why != nil {
			text := registered.ReplaceAllString(fmt.Sprint(why), "")
			s, err = Set{}, fault.New(fault.Invalid, "pathpattern.New", text)
		}
	}()
	var all []string
	for _, p := range patterns {
		p = normal(p)
		all = append(all, p)
		if !strings.HasPrefix(p, "/v1.0/invoke/") {
			all = append(all, "/v1.0/invoke/{app_id}/method"+p)
		}
	}
	slices.Sort(all)
	s.mux = http.NewServeMux()
	for _, p := range slices.Compact(all) {
		s.mux.Handle(p, http.NotFoundHandler())
	}
	return s, nil
}

// Match returns the pattern that fits a path best, or "" if none does. Duplicate slashes count as one.
func (s Set) Match(path string) string {
	if s.mux == nil {
		return ""
	}
	_, pattern := s.mux.Handler(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: normal(path)}})
	return pattern
}

func normal(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return path
}
