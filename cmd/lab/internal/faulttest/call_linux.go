package faulttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// Do sends a request to the node from inside its network namespace, where no network fault affects it.
func (n *Node) Do(ctx context.Context, r Request) Answer {
	begin := time.Now()
	a := n.do(ctx, r)
	n.cluster.watched(&r, begin, a)
	return a
}

func (n *Node) do(ctx context.Context, r Request) Answer {
	req, err := http.NewRequestWithContext(ctx, r.Method, "http://"+appAddress(r.App)+r.Path, strings.NewReader(r.Body))
	if err != nil {
		return Answer{Outcome: Refused, Text: err.Error()}
	}
	for k, v := range r.Header {
		req.Header.Set(k, v)
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return lost(r, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return lost(r, err)
	}
	a := failure(r, resp.StatusCode, body)
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNoContent {
		if a, err = success(r, resp.StatusCode, resp.Header.Get("ETag"), body); err != nil {
			return lost(r, err)
		}
	}
	a.Level, a.Session = resp.Header.Get("Quorate-Consistency"), resp.Header.Get("Quorate-Session")
	return a
}

// Invoke calls a method of an application through the node and returns its response. If the status is not 200, the
// error contains the body.
func (n *Node) Invoke(ctx context.Context, app, method string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+apiAddress+"/v1.0/invoke/"+app+"/method/"+method, nil)
	if err != nil {
		return "", err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// lost returns the Answer for a request that got no complete response because of err. Its outcome is Refused if the
// request cannot have changed anything, because it was a read or because the connection was refused. Otherwise the
// outcome is Unknown.
func lost(r Request, err error) Answer {
	a := Answer{Outcome: Unknown, Text: err.Error()}
	if r.reads || errors.Is(err, syscall.ECONNREFUSED) {
		a.Outcome = Refused
	}
	return a
}
