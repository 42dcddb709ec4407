package faulttest

import (
	"context"
	"io"
	"net/http"
	"strings"
)

// reply is the response of a node to a request that is not about state.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// open sends a request and returns the response without reading its body. header is a sequence of names and values.
func (n *Node) open(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+apiAddress+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return n.http.Do(req)
}

// raw sends a request and reads the response.
func (n *Node) raw(ctx context.Context, method, path, body string, header ...string) (reply, error) {
	resp, err := n.open(ctx, method, path, body, header...)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, text}, err
}
