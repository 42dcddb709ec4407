package eventgrid

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// operationCreate is the operation that publishes events.
const operationCreate = "create"

// The bounds of publishing.
const (
	attemptTime = 10 * time.Second // longest time of one attempt
	publishTime = time.Minute      // longest time of all attempts
	attempts    = 5
	maxAnswer   = 64 << 10 // largest answer of the topic, in bytes
)

// output publishes to one topic. It is immutable and safe for concurrent use.
type output struct {
	name, topic, key string
	transport        http.RoundTripper
	life             context.Context // canceled by close
	end              context.CancelFunc
}

func newOutput(o Options) (*output, error) {
	topic, err := parseTopic(o.Metadata.Text(metadataTopic))
	if err != nil {
		return nil, wrong(metadataTopic, err)
	}
	key := o.Metadata.Text(metadataAccessKey)
	if checkKey(key) != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "eventgrid.Open", Msg: "metadata " + metadataAccessKey +
			" is not an access key",
			Hint: "look for white space around it"}
	}
	out := &output{name: o.Name, topic: topic.String(), key: key, transport: o.Transport}
	out.life, out.end = context.WithCancel(context.Background())
	return out, nil
}

func (o *output) close(context.Context) error {
	o.end()
	return nil
}

// Operations returns the only operation.
func (o *output) Operations() []string { return []string{operationCreate} }

// Invoke publishes one event or an array of events. CloudEvents and events in the Event Grid schema are sent unchanged.
// Any other JSON value becomes the data of a new CloudEvent.
//
// If the topic temporarily refuses the events, Invoke waits and retries until ctx ends or all attempts are used. It
// does not retry after an attempt with an unknown outcome, so it never publishes an event twice.
func (o *output) Invoke(ctx context.Context, r bindings.Request) (*bindings.Response, error) {
	if !strings.EqualFold(r.Operation, operationCreate) {
		return nil, fault.New(fault.Invalid, "eventgrid.Invoke",
			"operation "+strconv.Quote(r.Operation)+" is not supported; supported is "+operationCreate)
	}
	if o.life.Err() != nil {
		return nil, fault.New(fault.Unavailable, "eventgrid.Invoke", "the binding is closed")
	}
	body, media, err := o.envelope(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	defer context.AfterFunc(o.life, cancel)()
	for try := 1; ; try++ {
		wait, err := o.once(ctx, body, media)
		if err == nil || wait < 0 || try == attempts {
			return nil, err
		}
		if !rest.Pause(ctx, cmp.Or(wait, rest.Backoff(try))) {
			return nil, err
		}
	}
}

// once makes one attempt to publish. After a failure, wait is the delay before the next attempt: 0 means the default
// delay, and a negative value means that Invoke must not retry.
func (o *output) once(ctx context.Context, body []byte, media string) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, o.topic, bytes.NewReader(body))
	if err != nil {
		return -1, fault.New(fault.Invalid, "eventgrid.Invoke", metadataTopic+" is not an address")
	}
	request.Header.Set("Content-Type", media)
	request.Header.Set("Aeg-Sas-Key", o.key)
	request.Header.Set("User-Agent", "quorate")
	response, err := o.transport.RoundTrip(request) // without redirects: they would get the key
	if err != nil {
		return -1, broken(ctx, err, connected.Load())
	}
	defer response.Body.Close() //nolint:errcheck // what matters has been read
	said, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if response.StatusCode/100 == 2 {
		return -1, nil
	}
	wait = patience(response)
	return wait, o.refused(response.StatusCode, wait >= 0, said)
}

// broken returns the error for an attempt without a response. If the connection was established, the code is
// fault.Indeterminate, because the topic may have accepted the events.
func broken(ctx context.Context, err error, connected bool) error {
	var timeout net.Error
	late := ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout()
	switch {
	case connected && late:
		return &fault.Error{Code: fault.Indeterminate, Op: "eventgrid.Invoke",
			Msg: "the topic did not answer in time; it may have taken the events", Err: ctx.Err()}
	case connected:
		return &fault.Error{Code: fault.Indeterminate, Op: "eventgrid.Invoke",
			Msg: "the connection failed before the topic answered; it may have taken the events", Err: err}
	case late:
		return &fault.Error{Code: fault.Timeout, Op: "eventgrid.Invoke",
			Msg: "the topic could not be reached in time", Err: ctx.Err(), Hint: "check " + metadataTopic}
	default:
		return &fault.Error{Code: fault.Unavailable, Op: "eventgrid.Invoke", Msg: "the topic cannot be reached",
			Err: err, Hint: "check " + metadataTopic}
	}
}

// patience returns how long to wait before the next attempt; 0 means the default delay. It returns a negative value if
// Invoke must not retry.
//
// A retry is safe only if the topic has refused the events. This is certain for status 429, and for status 503 with the
// header Retry-After. A 503 without this header may come from a proxy that lost the topic's response.
func patience(response *http.Response) time.Duration {
	after := response.Header.Get("Retry-After")
	switch s := response.StatusCode; {
	case s == http.StatusTooManyRequests:
	case s == http.StatusServiceUnavailable && after != "":
	default:
		return -1
	}
	if seconds, err := strconv.ParseUint(after, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(math.MaxInt64/time.Second))) * time.Second //nolint:gosec // bounded
	}
	if at, err := http.ParseTime(after); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// refused returns the error for a response with an unsuccessful status. The message includes the topic's reason. The
// parameter retry is true if the topic has not accepted the events and allows another attempt.
func (o *output) refused(status int, retry bool, said []byte) error {
	e := &fault.Error{Op: "eventgrid.Invoke", Msg: fmt.Sprintf("the topic answered %d", status)}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		e.Code, e.Hint = fault.Denied, "check "+metadataAccessKey+", and that the topic allows access by key from here"
	case status == http.StatusTooManyRequests:
		e.Code, e.Hint = fault.Overloaded, "publish less, or give the request more time"
	case status == http.StatusRequestEntityTooLarge:
		e.Code, e.Hint = fault.TooLarge, "publish fewer or smaller events at once"
	case status == http.StatusServiceUnavailable && retry:
		e.Code = fault.Unavailable
	case status >= http.StatusInternalServerError:
		e.Code, e.Hint = fault.Indeterminate, "the topic may have taken the events"
	case status == http.StatusBadRequest:
		e.Code, e.Hint = fault.Invalid, "the topic must take events in the schema "+schemaCloudEvents
	default:
		e.Code, e.Hint = fault.Invalid, "check "+metadataTopic
	}
	var reason struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(said, &reason) == nil {
		words := strings.Join(strings.Fields(reason.Error.Code+" "+reason.Error.Message), " ")
		words = strings.ReplaceAll(words, o.key, "***")
		if len(words) > maxReason {
			words = strings.ToValidUTF8(words[:maxReason], "") + "..."
		}
		if words != "" {
			e.Msg += ": " + words
		}
	}
	return e
}
