package main

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// bare is an HTTP/1.1 client on one connection with very little overhead, so that a comparison measures the stores and
// not the client libraries. It sends each request in one write, and parses the response in the goroutine of the caller.
// It is not safe for concurrent use.
type bare struct {
	address string
	conn    net.Conn
	answers *bufio.Reader
	request bytes.Buffer
}

func (b *bare) fetch(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	if b.conn == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", b.address)
		if err != nil {
			return nil, err
		}
		b.conn, b.answers = conn, bufio.NewReader(conn)
	}
	got, err := b.once(ctx, method, path, body)
	if err != nil {
		_ = b.conn.Close() // the first error is more useful
		b.conn = nil
	}
	return got, err
}

func (b *bare) once(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	deadline, _ := ctx.Deadline() // the zero time if ctx has no deadline; SetDeadline then sets none
	if err := b.conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	b.request.Reset()
	b.request.WriteString(method + " " + path + " HTTP/1.1\r\nHost: " + b.address + "\r\n")
	if body != nil {
		b.request.WriteString("Content-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n")
	}
	b.request.WriteString("\r\n")
	b.request.Write(body)
	if _, err := b.conn.Write(b.request.Bytes()); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(b.answers, nil)
	if err != nil {
		return nil, err
	}
	return success(answer, method, path)
}

// hostPort returns the host and the port in the base URL of a node.
func hostPort(url string) string { return strings.TrimPrefix(url, "http://") }
