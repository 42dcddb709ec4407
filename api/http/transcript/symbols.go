package transcript

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// symbols replaces values that differ from run to run. In an answer, it replaces each value with a name such as <etag
// 1>. In a request, it replaces the name with the value. A value keeps its name in the whole script. Therefore, a
// script can check that an ETag has changed: the new ETag has another name.
type symbols struct {
	names   map[string]string // kind and value -> "<etag 1>"
	values  map[string]string // "<etag 1>" -> value
	counts  map[string]int
	fields  *regexp.Regexp
	unknown *regexp.Regexp // a name that was not replaced
}

func newSymbols() *symbols {
	return &symbols{
		names: map[string]string{}, values: map[string]string{}, counts: map[string]int{},
		fields:  regexp.MustCompile(`"(etag|token|ttlExpireTime)":"((?:[^"\\]|\\.)*)"`),
		unknown: regexp.MustCompile(`<(etag|session|token) [0-9]+>`),
	}
}

// kindOfHeader returns the kind of the value of a header, such as an ETag, or "".
func kindOfHeader(name string) string {
	switch name {
	case "Etag":
		return "etag"
	case "Quorate-Session":
		return "session"
	case "Metadata.ttlexpiretime":
		return "time"
	}
	return ""
}

func kindOfField(name string) string {
	if name == "ttlExpireTime" {
		return "time"
	}
	return name
}

// noise returns the names of headers that belong to the transport and not to the API.
func noise() []string {
	return []string{"Date", "Content-Length", "Connection", "Transfer-Encoding"}
}

func (s *symbols) name(kind, value string) string {
	if kind == "time" {
		return nameTime(value)
	}
	key := kind + "\x00" + value
	if name, ok := s.names[key]; ok {
		return name
	}
	s.counts[kind]++
	name := fmt.Sprintf("<%s %d>", kind, s.counts[kind])
	s.names[key], s.values[name] = name, value
	return name
}

// nameTime returns "<time>" for a time. It returns a time after the year 2900 unchanged, because such times come from
// scripts and are the same in each run.
func nameTime(value string) string {
	if at, err := time.Parse(time.RFC3339, value); err == nil && at.Year() > 2900 {
		return value
	}
	return "<time>"
}

// response returns an answer in the form in which it is recorded. It replaces values with their names, and omits the
// headers of the transport.
func (s *symbols) response(r Response) Response {
	header := http.Header{}
	for _, name := range sortedNames(r.Header) {
		if slices.Contains(noise(), name) {
			continue
		}
		for _, value := range r.Header[name] {
			if name == "Quorate-Age" {
				value = "<age>"
			} else if kind := kindOfHeader(name); kind != "" {
				value = s.name(kind, value)
			}
			header.Add(name, value)
		}
	}
	body := s.fields.ReplaceAllFunc(r.Body, func(match []byte) []byte {
		parts := s.fields.FindSubmatch(match)
		return fmt.Appendf(nil, `"%s":"%s"`, parts[1], s.name(kindOfField(string(parts[1])), string(parts[2])))
	})
	return Response{Status: r.Status, Header: header, Body: bytes.Clone(body)}
}

// request replaces names with values of earlier answers, and expands abbreviated text.
func (s *symbols) request(r Request) (Request, error) {
	var failed error
	fill := func(text string) string {
		text = s.fill(text)
		if name := s.unknown.FindString(text); name != "" {
			failed = fmt.Errorf("no earlier answer had %s", name)
		}
		out, err := expand(text)
		if err != nil {
			failed = err
		}
		return out
	}
	out := Request{Method: r.Method, Target: fill(r.Target), Body: []byte(fill(string(r.Body)))}
	for _, h := range r.Header {
		out.Header = append(out.Header, Header{h.Name, fill(h.Value)})
	}
	return out, failed
}

func (s *symbols) fill(text string) string {
	for name, value := range s.values {
		text = strings.ReplaceAll(text, name, value)
	}
	return text
}

// expand replaces notations such as «5×ab» and «3,"k#"» with the text that they stand for.
func expand(text string) (string, error) {
	before, rest, ok := strings.Cut(text, "«")
	if !ok {
		return text, nil
	}
	inside, after, ok := strings.Cut(rest, "»")
	if !ok {
		return "", fmt.Errorf("« without » in %q", text)
	}
	middle, err := repeat(inside)
	if err != nil {
		return "", err
	}
	tail, err := expand(after)
	return before + middle + tail, err
}

func repeat(inside string) (string, error) {
	end := strings.IndexAny(inside, "×,")
	if end < 0 {
		return "", fmt.Errorf("«%s» has neither × nor a comma", inside)
	}
	n, err := strconv.Atoi(inside[:end])
	if err != nil {
		return "", fmt.Errorf("«%s» does not begin with a number", inside)
	}
	if text, ok := strings.CutPrefix(inside[end:], "×"); ok {
		return strings.Repeat(text, n), nil
	}
	parts := make([]string, n)
	for i := range parts {
		parts[i] = strings.ReplaceAll(inside[end+1:], "#", strconv.Itoa(i))
	}
	return strings.Join(parts, ","), nil
}
