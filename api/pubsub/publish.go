package pubsub

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// Source returns the brokers that are open. They may change while components are being loaded. Implementations are safe
// for concurrent use.
type Source interface {
	// PubSub returns the publish/subscribe component with the given name.
	PubSub(name string) (*pubsub.Instance, bool)
	// PubSubs returns all publish/subscribe components.
	PubSubs() []*pubsub.Instance
	// Loaded reports whether all components have been opened.
	Loaded() bool
}

// Options configure a Service. App and Source are required.
type Options struct {
	App    api.App
	Source Source
	// Policy returns the Resiliency policy for publishing to a component; nil = no policy.
	Policy func(component string) *resiliency.Policy
	Tracer api.BindingTracer // nil = no spans
	// Observer is notified of publishes; nil = none.
	Observer Observer
	Now      func() time.Time // nil = time.Now
}

// Observer is notified of messages. Implementations are safe for concurrent use.
type Observer interface {
	// Published is called after a publish of one message, or of several ones if bulk is true. ok is true if the broker
	// has all of them.
	Published(component, topic string, bulk, ok bool, took time.Duration)
	// Delivered is called after the delivery of a message, also if the application has not handled the message. The
	// status is a word of Dapr: success, retry or drop.
	Delivered(component, topic, status string, took time.Duration)
	// DeliveredBulk is called after the delivery of a batch, with the number of messages by status.
	DeliveredBulk(component, topic string, messages map[string]int, took time.Duration)
}

// Service publishes messages of one application. It is safe for concurrent use. All errors are *api.Error.
type Service struct{ o Options }

// New returns the service of an application.
func New(o Options) *Service {
	if o.Policy == nil {
		o.Policy = func(string) *resiliency.Policy { return nil }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Service{o}
}

// Payload is one message as the application sends it.
type Payload struct {
	Data        []byte // the caller must not change it later
	ContentType string
	Metadata    map[string]string // may be nil
}

// PublishRequest publishes one message.
type PublishRequest struct {
	PubSub, Topic string
	Payload
	Trace http.Header // has traceparent and tracestate of the caller; may be nil
	// TraceRaw adds the trace to the metadata of a message without envelope.
	TraceRaw bool
}

// Publish publishes one message.
func (s *Service) Publish(ctx context.Context, r *PublishRequest) error {
	i, err := s.target(r.PubSub, r.Topic, r.Metadata)
	if err != nil {
		return err
	}
	span, ctx := s.span(ctx, r.Trace, i.Name, r.Topic)
	m, failure := s.message(i, r.Topic, &r.Payload, span)
	if failure == nil && r.TraceRaw && m.ID == "" && raw(r.Metadata) {
		m.Metadata = span.addTo(m.Metadata)
	}
	if failure == nil {
		failure = s.send(ctx, i, r.Topic, []pubsub.Message{m}, r.Metadata, nil)
	}
	span.end(failure)
	if failure != nil {
		return failure
	}
	return nil
}

// target returns the component of a publish request. It checks the names and the metadata in the same order as Dapr, so
// that a request with several faults gets the same error.
func (s *Service) target(name, topic string, metadata map[string]string) (*pubsub.Instance, error) {
	if name == "" {
		return nil, nameEmpty(metadata)
	}
	i, ok := s.o.Source.PubSub(name)
	switch {
	case ok && i.VisibleTo(s.o.App.ID):
	case !s.o.Source.Loaded():
		return nil, starting(name)
	case len(s.o.Source.PubSubs()) == 0:
		return nil, notConfigured(name, metadata)
	default:
		return nil, notFound(name, metadata)
	}
	if topic == "" {
		return nil, topicEmpty(name, metadata)
	}
	if text, given := metadata[keyRawPayload]; given {
		if _, err := strconv.ParseBool(text); err != nil {
			return nil, metadataInvalid(name, metadata, "rawPayload value must be a valid boolean: actual is '"+
				api.Shorten(text)+"'")
		}
	}
	if err := pubsub.CheckTopic(topic); err != nil {
		return nil, metadataInvalid(name, nil, "the name of the topic "+err.Error())
	}
	if text := reserved(topic); text != "" {
		return nil, metadataInvalid(name, nil, "the name of the topic "+text)
	}
	if err := checkMetadata(metadata); err != "" {
		return nil, metadataInvalid(name, nil, err)
	}
	if !i.Topics.MayPublish(s.o.App.ID, topic) {
		return nil, forbidden(i.Name, topic, s.o.App.ID)
	}
	return i, nil
}

// maxMetadata is the largest size of the metadata of one message, in bytes.
const maxMetadata = 64 << 10

// checkMetadata returns what is wrong with the metadata of a message, or "" if the metadata is valid.
func checkMetadata(metadata map[string]string) string {
	if len(metadata) > pubsub.MaxMessageMetadata {
		return "there are " + strconv.Itoa(len(metadata)) + " pairs of metadata; the limit is " +
			strconv.Itoa(pubsub.MaxMessageMetadata)
	}
	size := 0
	for name, value := range metadata {
		size += len(name) + len(value)
	}
	if size > maxMetadata {
		return "the metadata has " + strconv.Itoa(size) + " bytes; the limit is " + strconv.Itoa(maxMetadata)
	}
	return ""
}

// message converts a payload to a message for the broker. It wraps the payload in a CloudEvent, unless the metadata
// has rawPayload.
func (s *Service) message(i *pubsub.Instance, topic string, p *Payload, t *trace) (pubsub.Message, *api.Error) {
	m := pubsub.Message{Data: p.Data, ContentType: p.ContentType, Metadata: p.Metadata}
	abilities, now := i.Broker.Abilities(), s.o.Now()
	ttl := ttlOf(p.Metadata)
	if abilities.TTL {
		m.TTL, ttl = ttl, 0
	}
	m.Key = cmp.Or(p.Metadata[keyPartition], p.Metadata[keyPartitionKafka])
	at, text := deliverAt(p.Metadata, now)
	if text == "" && !at.IsZero() && !abilities.Delayed {
		text = keyDeliverAt + " and " + keyDelay + " are not supported by a component of type " + i.Type
	}
	if text != "" {
		return m, metadataInvalid(i.Name, p.Metadata, text)
	}
	m.DeliverAt = at
	if raw(p.Metadata) {
		return m, nil
	}
	e := envelope{topic: topic, pubsub: i.Name, source: s.o.App.ID, trace: t, now: now, ttl: ttl}
	data, id, err := e.wrap(p)
	if err != nil {
		return m, cannotCreate(i.Name, s.o.App.ID, err)
	}
	m.Data, m.ID, m.ContentType = data, id, contentCloudEvent
	return m, nil
}

// send publishes messages, with the retries and the timeout of the component's policy. It calls failed for each message
// that the broker has refused. If failed is nil, one refused message makes the whole request fail.
func (s *Service) send(ctx context.Context, i *pubsub.Instance, topic string, messages []pubsub.Message,
	metadata map[string]string, failed func(pubsub.Failure)) *api.Error {
	start := time.Now()
	var failures []pubsub.Failure
	unknown := false // an attempt that failed as a whole may have published messages
	err := s.o.Policy(i.Name).RepeatWrite(ctx, func(ctx context.Context) (err error) {
		failures, err = i.Broker.Publish(ctx, pubsub.PublishRequest{Topic: i.TopicOf(topic), Messages: messages,
			Metadata: metadata})
		if err == nil && failed == nil && len(failures) > 0 {
			err = failures[0].Err
		}
		unknown = unknown || fault.Is(err, fault.Indeterminate)
		return err
	})
	if s.o.Observer != nil {
		s.o.Observer.Published(i.Name, topic, failed != nil, err == nil && len(failures) == 0, time.Since(start))
	}
	if err != nil {
		return publishFailed(i.Name, topic, err)
	}
	for _, f := range failures {
		if unknown && !fault.Is(f.Err, fault.Indeterminate) {
			f.Err = &fault.Error{Code: fault.Indeterminate, Op: "pubsub.publish", Err: f.Err,
				Msg: "an earlier attempt may have published the message, and the last one failed"}
		}
		failed(f)
	}
	return nil
}

// Names of metadata.
const (
	keyRawPayload     = "rawPayload"
	keyPartition      = "partitionKey"
	keyPartitionKafka = "__key"
	keyDeliverAt      = "deliverAt"
	keyDelay          = "delayInSeconds"
)

func raw(metadata map[string]string) bool {
	on, err := strconv.ParseBool(metadata[keyRawPayload])
	return on && err == nil
}

// Names of the metadata for the time to live. Case is ignored. Both names mean the same setting. If both are given,
// keyTTL has priority.
const (
	keyTTL      = "ttlInSeconds"
	keyTTLShort = "ttl"
)

func isTTL(name string) bool {
	return strings.EqualFold(name, keyTTL) || strings.EqualFold(name, keyTTLShort)
}

// ttlOf returns the time to live in metadata, or 0 if there is none. The result is at most maxTTL. As in Dapr, a value
// that cannot be parsed is ignored. The first of these names has priority:
//
//   - ttlInSeconds, and then its other spellings, such as TTLInSeconds
//   - ttl, and then its other spellings, such as TTL
func ttlOf(metadata map[string]string) time.Duration {
	var names []string
	for name := range metadata {
		if isTTL(name) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(rankTTL(a)-rankTTL(b), strings.Compare(a, b)) })
	for _, name := range names {
		if d := parseTTL(metadata[name]); d > 0 {
			return d
		}
	}
	return 0
}

// rankTTL returns the priority of a name; a smaller number is preferred.
func rankTTL(name string) int {
	switch {
	case name == keyTTL:
		return 0
	case strings.EqualFold(name, keyTTL):
		return 1
	case name == keyTTLShort:
		return 2
	}
	return 3
}

// parseTTL parses a number of seconds or a duration. It returns 0 for any other text, and at most maxTTL.
func parseTTL(text string) time.Duration {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(max(n, 0), int64(maxTTL/time.Second))) * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return min(max(d, 0), maxTTL)
}

// maxTTL limits times to live and delays. Larger values overflow in some brokers.
const maxTTL = 100 * 365 * 24 * time.Hour

// deliverAt returns the time before which a message must not be delivered, or the zero time if metadata sets none. If
// metadata is invalid, the second result is the reason.
func deliverAt(metadata map[string]string, now time.Time) (time.Time, string) {
	if text, ok := metadata[keyDeliverAt]; ok {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil || at.Sub(now) > maxTTL {
			return time.Time{}, keyDeliverAt + " must be a time such as 2030-01-02T15:04:05Z, within the next " +
				"100 years: actual is '" + api.Shorten(text) + "'"
		}
		return at, ""
	}
	if text, ok := metadata[keyDelay]; ok {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > int64(maxTTL/time.Second) {
			return time.Time{}, keyDelay + " must be a number of seconds, at most 100 years: actual is '" +
				api.Shorten(text) + "'"
		}
		return now.Add(time.Duration(n) * time.Second), ""
	}
	return time.Time{}, ""
}

// trace has the span and the trace context of a publish.
type trace struct {
	span          api.BindingSpan // nil = none
	parent, state string
}

// span starts the span of a publish. It returns the trace to send with the messages, and a context with the span.
// The parameter from has the headers of the caller. Without a tracer, the trace is the one in these headers.
func (s *Service) span(ctx context.Context, from http.Header, name, topic string) (*trace, context.Context) {
	h := http.Header{}
	for _, key := range []string{"Traceparent", "Tracestate"} {
		if v := from.Get(key); v != "" {
			h.Set(key, v)
		}
	}
	t := &trace{}
	if s.o.Tracer != nil {
		t.span = s.o.Tracer.StartBinding(ctx, h, "pubsub "+name+" "+topic)
		t.span.Inject(h)
		ctx = t.span.Context()
	}
	t.parent, t.state = h.Get("Traceparent"), h.Get("Tracestate")
	return t, ctx
}

func (t *trace) end(failure *api.Error) {
	if t.span == nil {
		return
	}
	if failure != nil {
		t.span.EndBinding(failure)
		return
	}
	t.span.EndBinding(nil)
}

// addTo returns a copy of metadata with the trace context added.
func (t *trace) addTo(metadata map[string]string) map[string]string {
	out := maps.Clone(metadata)
	out["traceid"] = t.parent
	if t.state != "" {
		out["tracestate"] = t.state
	}
	return out
}

func newID() string { return uuid.NewString() }

// textOf returns the text of an error for the client.
func textOf(err error) string {
	if _, ok := fault.As(err); ok {
		return fault.Text(err)
	}
	return "it failed; the node's log has the details" // errors that are not faults may contain a secret
}
