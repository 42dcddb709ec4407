// Package transcript reads, replays and writes recorded conversations with the API. The files are plain text that
// people can read. They contain requests and the expected answers.
//
// The package owns the file format. It also replaces values that differ from run to run (ETags, sessions, times) with
// names. It does not depend on a store or a server, so the same files are replayed with different stores and servers.
// Only tests import it. It has no goroutines.
//
// A file is a sequence of steps:
//
//	Text before the first step is a comment.
//
//	== the claim this step proves
//	> POST /v1.0/state/orders
//	> Content-Type: application/json
//	>
//	> [{"key":"a","value":1}]
//	< 204
//	< Quorate-Consistency: linearizable
//
// Lines that start with '>' are the request, and lines that start with '<' are the answer. Both consist of a first
// line, headers, an empty line and a body. These notations stand for other text:
//
//	>q "text"   a body of a request that is not plain text, as a quoted Go string; <q for an answer
//	«5×ab»      "ab" five times; only in requests
//	«3,"k#"»    "k0","k1","k2"; only in requests
//	<etag 1>    an ETag; equal ETags have equal numbers; also <session 1> and <token 1>
//	<time>      any time
//	<age>       any age
package transcript

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Header is one line in the header of a request.
type Header struct{ Name, Value string }

// Request is one request. Target is the path and query of the request line, as written.
type Request struct {
	Method, Target string
	Header         []Header
	Body           []byte
}

// Response is the answer to a request.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Step is one exchange. Title is the claim that the exchange checks.
type Step struct {
	Title    string
	Request  Request
	Response Response
}

// Script is the content of one file.
type Script struct {
	Comment string
	Steps   []Step
}

// Parse parses the content of a file. A step without an answer gets status 0.
func Parse(data []byte) (Script, error) {
	var s Script
	blocks := bytes.Split(append([]byte{'\n'}, data...), []byte("\n== "))
	s.Comment = strings.TrimSpace(string(blocks[0]))
	for _, block := range blocks[1:] {
		step, err := parseStep(string(block))
		if err != nil {
			return s, fmt.Errorf("step %q: %w", step.Title, err)
		}
		s.Steps = append(s.Steps, step)
	}
	return s, nil
}

func parseStep(block string) (Step, error) {
	lines := strings.Split(strings.TrimRight(block, "\n"), "\n")
	step := Step{Title: lines[0]}
	var asked, answered part
	for _, line := range lines[1:] {
		var err error
		switch {
		case strings.HasPrefix(line, ">"):
			err = asked.add(line[1:])
		case strings.HasPrefix(line, "<"):
			err = answered.add(line[1:])
		case strings.TrimSpace(line) != "":
			err = fmt.Errorf("line %q starts with neither '>' nor '<'", line)
		}
		if err != nil {
			return step, err
		}
	}
	return step, step.fill(&asked, &answered)
}

func (s *Step) fill(asked, answered *part) error {
	method, target, ok := strings.Cut(asked.first, " ")
	if !ok {
		return fmt.Errorf("the request line %q lacks a target", asked.first)
	}
	s.Request = Request{Method: method, Target: target, Header: asked.header, Body: asked.content()}
	s.Response = Response{Header: http.Header{}, Body: answered.content()}
	for _, h := range answered.header {
		s.Response.Header.Add(h.Name, h.Value)
	}
	if answered.first == "" { // the answer is still to be recorded
		return nil
	}
	var err error
	s.Response.Status, err = strconv.Atoi(answered.first)
	return err
}

// part collects the lines of a request or an answer.
type part struct {
	first  string
	header []Header
	inBody bool
	body   []string
	quoted []byte
}

func (p *part) add(line string) error {
	if text, ok := strings.CutPrefix(line, "q "); ok {
		body, err := strconv.Unquote(text)
		p.quoted = []byte(body)
		return err
	}
	line = strings.TrimPrefix(line, " ")
	switch {
	case p.inBody:
		p.body = append(p.body, line)
	case p.first == "":
		p.first = line
	case line == "":
		p.inBody = true
	default:
		name, value, ok := strings.Cut(line, ": ")
		if !ok {
			return fmt.Errorf("header line %q lacks a colon", line)
		}
		p.header = append(p.header, Header{name, value})
	}
	return nil
}

func (p *part) content() []byte {
	if p.quoted != nil {
		return p.quoted
	}
	return []byte(strings.Join(p.body, "\n"))
}

// Format returns the content of a file for s. Parse returns s for this content.
func (s Script) Format() []byte {
	var b bytes.Buffer
	if s.Comment != "" {
		b.WriteString(s.Comment + "\n\n")
	}
	for i, step := range s.Steps {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "== %s\n> %s %s\n", step.Title, step.Request.Method, step.Request.Target)
		for _, h := range step.Request.Header {
			fmt.Fprintf(&b, "> %s: %s\n", h.Name, h.Value)
		}
		formatBody(&b, ">", step.Request.Body)
		fmt.Fprintf(&b, "< %d\n", step.Response.Status)
		for _, name := range sortedNames(step.Response.Header) {
			for _, value := range step.Response.Header[name] {
				fmt.Fprintf(&b, "< %s: %s\n", name, value)
			}
		}
		formatBody(&b, "<", step.Response.Body)
	}
	return b.Bytes()
}

func formatBody(b *bytes.Buffer, mark string, body []byte) {
	switch {
	case len(body) == 0:
	case !plain(body):
		fmt.Fprintf(b, "%sq %q\n", mark, body)
	default:
		b.WriteString(mark + "\n")
		for line := range strings.SplitSeq(string(body), "\n") {
			b.WriteString(strings.TrimRight(mark+" "+line, " ") + "\n")
		}
	}
}

// plain reports whether a body can be written as lines without loss.
func plain(body []byte) bool {
	if !utf8.Valid(body) {
		return false
	}
	for line := range strings.SplitSeq(string(body), "\n") {
		if strings.HasSuffix(line, " ") {
			return false
		}
	}
	return !bytes.ContainsFunc(body, func(r rune) bool { return r != '\n' && unicode.IsControl(r) })
}

func sortedNames(h http.Header) []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
