package eventgridtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The media types of deliveries.
const (
	MediaEvent = "application/cloudevents+json; charset=utf-8"
	MediaBatch = "application/cloudevents-batch+json; charset=utf-8"
)

// Delivery is one attempt to deliver events to an endpoint.
type Delivery struct {
	Endpoint string
	Method   string // empty = POST
	Header   http.Header
	Token    string // empty = none
	Body     []byte
}

// Answer is the answer of the endpoint to an attempt.
type Answer struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   string      `json:"body"`
}

// Attempt makes the attempt d, and returns the answer of the endpoint.
func (f *Fake) Attempt(ctx context.Context, d Delivery) (Answer, error) {
	method := d.Method
	if method == "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, d.Endpoint, bytes.NewReader(d.Body))
	if err != nil {
		return Answer{}, err
	}
	for name, values := range d.Header {
		r.Header[name] = values
	}
	if d.Token != "" {
		r.Header.Set("Authorization", "Bearer "+d.Token)
	}
	response, err := f.client.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return Answer{Status: response.StatusCode, Header: response.Header, Body: string(body)}, err
}

// Outcome is the outcome of a delivery.
type Outcome struct {
	Attempts int  `json:"attempts"`
	Handled  bool `json:"handled"`
	Dropped  bool `json:"dropped"` // Event Grid would not retry the delivery
}

// Deliver delivers events to the endpoint of a subscription, with a token, as Event Grid does. Several events are sent
// as one batch. If there is no response, or a status after which Event Grid retries, Deliver tries again after a pause,
// until it has made the given number of attempts.
func (f *Fake) Deliver(ctx context.Context, endpoint string, events []json.RawMessage, attempts int,
	pause time.Duration) (Outcome, error) {
	media, body := MediaBatch, slices.Concat([]byte("["), bytes.Join(raw(events), []byte(",")), []byte("]"))
	if len(events) == 1 {
		media, body = MediaEvent, events[0]
	}
	var o Outcome
	for o.Attempts < attempts {
		token, err := f.Token()
		if err != nil {
			return o, err
		}
		o.Attempts++
		a, err := f.Attempt(ctx, Delivery{Endpoint: endpoint, Token: token, Body: body,
			Header: http.Header{"Content-Type": {media}, "Aeg-Event-Type": {"Notification"},
				"Aeg-Delivery-Count": {"0"}}})
		switch {
		case err != nil && ctx.Err() != nil:
			return o, ctx.Err()
		case err != nil: // Deliver retries
		case a.Status >= 200 && a.Status <= 204:
			o.Handled = true
			return o, nil
		case final(a.Status):
			o.Dropped = true
			return o, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return o, ctx.Err()
		}
	}
	return o, nil
}

func raw(events []json.RawMessage) [][]byte {
	out := make([][]byte, len(events))
	for i, e := range events {
		out[i] = e
	}
	return out
}

// final reports whether Event Grid does not retry after a status.
func final(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestEntityTooLarge:
		return true
	}
	return false
}

func parseForm(body []byte) (url.Values, error) { return url.ParseQuery(string(body)) }

// control serves the requests with which another process inspects and controls the fake:
//
//	GET  /control/requests?part=topic   returns the recorded requests
//	POST /control/nodes                 sets where deliveries are forwarded: {"nodes":["127.0.0.1:9000"]}
//	POST /control/deliver               delivers events: {"endpoint","events","attempts","pauseMillis"}
func (f *Fake) control(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Nodes    []string          `json:"nodes"`
		Endpoint string            `json:"endpoint"`
		Events   []json.RawMessage `json:"events"`
		Attempts int               `json:"attempts"`
		Pause    int               `json:"pauseMillis"`
	}
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			fail(w, http.StatusBadRequest, "BadRequest", err.Error())
			return
		}
	}
	switch action := strings.TrimPrefix(r.URL.Path, "/control/"); action {
	case "requests":
		write(w, http.StatusOK, f.Requests(r.URL.Query().Get("part")))
	case "nodes":
		f.Lead(asked.Nodes...)
		write(w, http.StatusOK, map[string]any{})
	case "deliver":
		o, err := f.Deliver(r.Context(), asked.Endpoint, asked.Events, max(asked.Attempts, 1),
			time.Duration(asked.Pause)*time.Millisecond)
		if err != nil {
			err = errors.Join(errors.New("delivering"), err)
			fail(w, http.StatusBadGateway, "Failed", err.Error())
			return
		}
		write(w, http.StatusOK, o)
	default:
		fail(w, http.StatusNotFound, "NotFound", action)
	}
}
