package eventgrid

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/connlimit"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lifecycle"
)

// The bounds of deliveries.
const (
	maxBody       = 2 << 20 // bytes; the service sends at most half of it
	maxHandshake  = 64 << 10
	maxDeliveries = 128 // concurrent deliveries
	deliverTime   = time.Minute
	warnPause     = time.Minute // minimum time between two warnings about refused deliveries
	retrySeconds  = "30"
)

// handler handles the requests of the service. It is safe for concurrent use.
type handler struct {
	input       *input
	sink        bindings.Sink
	connections *connlimit.Limiter
	slots       chan struct{}
	running     lifecycle.Tracker // counts running requests and the server

	mu     sync.Mutex // guards the field below
	warned time.Time
}

func newHandler(in *input, sink bindings.Sink, connections *connlimit.Limiter) *handler {
	return &handler{input: in, sink: sink, connections: connections, slots: make(chan struct{}, maxDeliveries)}
}

// ServeHTTP answers validation handshakes itself. It passes deliveries to the application, and reports the outcome
// in the HTTP status. Event Grid retries a failed delivery, except after the status 400, 401, 403 or 413.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.running.Enter() {
		say(w, http.StatusServiceUnavailable, "it is being closed")
		return
	}
	defer h.running.Leave()
	if r.URL.EscapedPath() != h.input.settings.endpoint.EscapedPath() {
		say(w, http.StatusNotFound, "there is nothing here")
		return
	}
	switch r.Method {
	case http.MethodOptions:
		handshake(w, r)
	case http.MethodPost:
		if r.Header.Get("Aeg-Event-Type") == "SubscriptionValidation" {
			validation(w, r)
			return
		}
		h.delivery(w, r)
	default:
		w.Header().Set("Allow", "POST, OPTIONS")
		say(w, http.StatusMethodNotAllowed, "only POST and OPTIONS are taken here")
	}
}

// handshake answers the validation handshake of CloudEvents. This answer is enough for Event Grid to deliver events.
// The address in WebHook-Request-Callback is never called, because anyone could set it.
func handshake(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", "POST, OPTIONS")
	if origin := r.Header.Get("WebHook-Request-Origin"); origin != "" {
		w.Header().Set("WebHook-Allowed-Origin", origin)
		w.Header().Set("WebHook-Allowed-Rate", "*")
	}
	w.WriteHeader(http.StatusOK)
}

// validation answers the validation handshake of the Event Grid schema, which arrives as one event. It checks no token
// or secret, because the answer proves only that the sender can reach this endpoint.
func validation(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxHandshake))
	code, ok := validationCode(body)
	if err != nil || !ok {
		say(w, http.StatusBadRequest, "this is no event of a subscription's validation")
		return
	}
	w.Header().Set("Content-Type", mediaJSON)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	answer, err := json.Marshal(map[string]string{"validationResponse": code})
	if err == nil {
		_, _ = w.Write(answer) // an error means that the sender has disconnected
	}
}

// delivery passes the events of one delivery to the application, in order. It reports success only if the
// application handled all events. Otherwise Event Grid delivers all of them again.
func (h *handler) delivery(w http.ResponseWriter, r *http.Request) {
	if err := h.admit(r); err != nil {
		h.refuse(w, err)
		return
	}
	// Only an admitted delivery protects its connection from the limit. Otherwise anyone could fill the listener with
	// unfinished requests and keep Event Grid out.
	c := r.Context().Value(connKey{}).(net.Conn) // withConn has set it
	h.connections.Busy(c)
	defer h.connections.Idle(c)
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		h.refuse(w, fault.New(fault.Overloaded, "eventgrid.deliver", "too many deliveries are under way"))
		return
	}
	if !h.sink.Ready() {
		h.refuse(w, fault.New(fault.Unavailable, "eventgrid.deliver", "the application takes no events now"))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		h.refuse(w, unreadable(err))
		return
	}
	all, err := events(r.Header, body)
	if err != nil {
		h.refuse(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), deliverTime)
	defer cancel()
	for _, e := range all {
		if _, err := h.sink.Deliver(ctx, bindings.Event{Data: e}); err != nil {
			h.failed(w, err)
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}

func unreadable(err error) error {
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return fault.New(fault.TooLarge, "eventgrid.deliver", "the body has more than "+strconv.Itoa(maxBody)+" bytes")
	}
	return fault.New(fault.Timeout, "eventgrid.deliver", "the body did not arrive")
}

// admit authenticates a delivery. If the settings require a bearer token, admit checks this token. Otherwise the query
// of the request must contain the query of the configured endpoint, which may contain a secret. admit returns
// fault.Denied if the token or the query is wrong, and fault.Unavailable if the token cannot be checked.
func (h *handler) admit(r *http.Request) error {
	if h.input.verifier != nil {
		return h.input.verifier.verify(r.Context(), r.Header)
	}
	got := r.URL.Query()
	for name, values := range h.input.settings.endpoint.Query() {
		for i, value := range values {
			if i >= len(got[name]) || subtle.ConstantTimeCompare([]byte(got[name][i]), []byte(value)) != 1 {
				return denied("the query of " + metadataEndpoint + " is missing")
			}
		}
	}
	return nil
}

// refuse answers a delivery that did not reach the application.
func (h *handler) refuse(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	switch fault.CodeOf(err) {
	case fault.Invalid:
		status = http.StatusBadRequest
	case fault.Denied:
		status = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", "Bearer")
	case fault.TooLarge:
		status = http.StatusRequestEntityTooLarge
	default:
		w.Header().Set("Retry-After", retrySeconds)
	}
	h.warn("a delivery was refused", status, err)
	text := fault.Text(err)
	if status == http.StatusServiceUnavailable { // the error is only for the log, because it may name other services
		text = "it cannot be taken now"
	}
	say(w, status, text)
}

// failed answers a delivery that the application failed to handle. The answer does not contain the application's
// error.
func (h *handler) failed(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if code := fault.CodeOf(err); code == fault.Unavailable || code == fault.Overloaded || code == fault.Timeout {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", retrySeconds)
	}
	h.warn("the application did not handle an event; it is sent again", status, err)
	say(w, status, "the event was not handled")
}

// warn logs at most one warning per warnPause, because anyone can send requests. Further messages have the level
// debug.
func (h *handler) warn(msg string, status int, err error) {
	h.mu.Lock()
	calm := time.Since(h.warned) < warnPause
	if !calm {
		h.warned = time.Now()
	}
	h.mu.Unlock()
	if calm {
		h.input.log.Debug(msg, "status", status, "error", err)
		return
	}
	h.input.log.Warn(msg+" (more of this within a minute is logged at level debug)", "status", status, "error", err)
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // an error means that the sender has disconnected
}
