package transcript

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Doer sends one request over HTTP, or an equivalent one over another protocol.
type Doer interface {
	Do(ctx context.Context, r Request) (Response, error)
}

// Options adapt a replay to the differences between stores.
type Options struct {
	// IgnoreHeaders are the headers to remove from the received answers. An example is Quorate-Consistency, if the
	// store answers with another level than the recorded one.
	IgnoreHeaders []string
	// OmitWriteETag removes the ETag of answers with status 204. Some stores acknowledge a write before the ETag is
	// known.
	OmitWriteETag bool
}

// Replay sends the request of every step of s. It returns a copy of s with the received answers instead of the
// expected ones, for comparison with s.
func (s Script) Replay(ctx context.Context, d Doer, o Options) (Script, error) {
	out := Script{Comment: s.Comment, Steps: make([]Step, len(s.Steps))}
	known := newSymbols()
	for i, step := range s.Steps {
		request, err := known.request(step.Request)
		if err != nil {
			return out, fmt.Errorf("step %q: %w", step.Title, err)
		}
		response, err := d.Do(ctx, request)
		if err != nil {
			return out, fmt.Errorf("step %q: %w", step.Title, err)
		}
		if o.OmitWriteETag && response.Status == http.StatusNoContent {
			response.drop([]string{"Etag"})
		}
		out.Steps[i] = Step{Title: step.Title, Request: step.Request, Response: known.response(response)}
		out.Steps[i].Response.drop(o.IgnoreHeaders)
	}
	return out, nil
}

// Without returns a copy of s whose answers lack the named headers. A test compares the copy with the result of a
// Replay whose Options.IgnoreHeaders has the same names.
func (s Script) Without(headers []string) Script {
	out := Script{Comment: s.Comment, Steps: make([]Step, len(s.Steps))}
	for i, step := range s.Steps {
		step.Response.Header = step.Response.Header.Clone()
		step.Response.drop(headers)
		out.Steps[i] = step
	}
	return out
}

func (r *Response) drop(headers []string) {
	for _, name := range headers {
		r.Header.Del(name)
	}
}

// HTTP returns a Doer that sends HTTP/1.1 requests to a base address such as http://127.0.0.1:3500. It sends paths
// and headers exactly as written. It adds Host and Content-Length if the step does not set them.
func HTTP(base string) (Doer, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	return wire{host: u.Host}, nil
}

// wire is a Doer that opens a connection for each request.
type wire struct{ host string }

// exchangeTime is the time limit of one exchange.
const exchangeTime = 30 * time.Second

func (w wire) Do(ctx context.Context, r Request) (Response, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", w.host)
	if err != nil {
		return Response{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(exchangeTime)); err != nil {
		return Response{}, err
	}
	sent := make(chan error, 1)
	go func() { // a server may answer before it has read everything
		_, err := conn.Write(w.message(r))
		sent <- err
	}()
	response, err := readResponse(conn, r.Method)
	_ = conn.Close()
	if failed := <-sent; err != nil && failed != nil {
		err = failed
	}
	return response, err
}

func (w wire) message(r Request) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", r.Method, r.Target)
	host, length := true, len(r.Body) > 0
	for _, h := range r.Header {
		host = host && !strings.EqualFold(h.Name, "Host")
		length = length && !strings.EqualFold(h.Name, "Transfer-Encoding") &&
			!strings.EqualFold(h.Name, "Content-Length")
		fmt.Fprintf(&b, "%s: %s\r\n", h.Name, h.Value)
	}
	if host {
		fmt.Fprintf(&b, "Host: %s\r\n", w.host)
	}
	if length {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(r.Body))
	}
	b.WriteString("\r\n")
	b.Write(r.Body)
	return b.Bytes()
}

func readResponse(conn net.Conn, method string) (Response, error) {
	in, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return Response{}, err
	}
	defer in.Body.Close()
	body, err := io.ReadAll(in.Body)
	return Response{Status: in.StatusCode, Header: in.Header, Body: body}, err
}
