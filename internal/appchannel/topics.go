package appchannel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"unicode"

	runtime "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/headers"
)

// Headers that Quorate adds to a delivery, and that Dapr does not have.
const (
	headerPubSub = "Pubsubname"
	headerAck    = "Quorate-Ack" // the token that acknowledges the message in a state transaction
)

// Limits of the answers of the application, in bytes.
const (
	maxTopicAnswer   = 4 << 20 // an answer to one message or to a batch
	maxSubscriptions = 4 << 20 // an answer to GET /dapr/subscribe
	maxExcerpt       = 256     // the part of an answer that an error quotes
)

// TopicAnswer is the answer of an application to a message.
type TopicAnswer int

// The answers.
const (
	TopicSuccess TopicAnswer = iota
	TopicRetry
	TopicDrop
	TopicNotFound // the application answered 404 to the path of the message
	TopicUnknown  // the application has no handler for messages
)

// TopicMessage is one message of a topic.
type TopicMessage struct {
	Path     string
	PubSub   string
	Body     []byte                            // for an HTTP application: a CloudEvent in JSON
	Metadata map[string]string                 // becomes headers; names that cannot be headers are left out
	Parent   string                            // traceparent
	State    string                            // tracestate; empty = none
	Token    string                            // acknowledges the message in a state transaction; empty = none
	Proto    func() *runtime.TopicEventRequest // for a gRPC application
}

// TakeMessage delivers a message to the application and returns its answer. Errors:
//
//   - fault.Internal if the application reports a failure, or if an HTTP application answers RETRY. The text quotes the
//     first bytes of the answer. If the status reports the failure, AnswerOf returns the answer.
//   - fault.Corrupt if the answer is too long.
//   - the errors of RoundTrip.
func (c *Channel) TakeMessage(ctx context.Context, m *TopicMessage) (TopicAnswer, error) {
	ctx, cancel := context.WithCancel(ctx) // net/http registers each request with its context; cancel removes this
	defer cancel()
	if g, ok := c.carry.(*grpcCarrier); ok {
		return g.takeMessage(ctx, m)
	}
	body, answer, err := c.post(ctx, m.Path, "application/cloudevents+json", m.Body, maxTopicAnswer, m.headers)
	switch {
	case err != nil:
		return TopicRetry, err
	case answer.StatusCode == http.StatusNotFound:
		return TopicNotFound, nil
	}
	var said struct{ Status string }
	if json.Unmarshal(body, &said) != nil {
		return TopicSuccess, nil // an application that handled the message may send any other body
	}
	verdict := topicAnswer(said.Status, TopicSuccess)
	if verdict == TopicRetry {
		return verdict, fault.New(fault.Internal, "appchannel.TakeMessage", fmt.Sprintf("POST %s answered %d%s",
			m.Path, answer.StatusCode, excerpt(body)))
	}
	return verdict, nil
}

// excerpt returns the first bytes of an answer on one line, for an error or the log. It escapes control characters. The
// result begins with ": ", for example ": out of memory". If the answer has no text, the result is empty.
func excerpt(answer []byte) string {
	cut := len(answer) > maxExcerpt
	var b strings.Builder
	for word := range strings.FieldsSeq(strings.ToValidUTF8(string(answer[:min(len(answer), maxExcerpt)]), "")) {
		b.WriteByte(' ')
		for _, r := range word {
			if unicode.IsPrint(r) {
				b.WriteRune(r)
			} else {
				b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			}
		}
	}
	if b.Len() == 0 {
		return ""
	}
	if cut {
		b.WriteString("...")
	}
	return ":" + b.String()
}

// topicAnswer converts the status in an answer to a TopicAnswer. An empty status becomes byDefault, and an unknown
// status becomes TopicRetry.
func topicAnswer(word string, byDefault TopicAnswer) TopicAnswer {
	switch word {
	case "":
		return byDefault
	case "SUCCESS":
		return TopicSuccess
	case "DROP":
		return TopicDrop
	}
	return TopicRetry
}

// headers adds the HTTP headers of the message to h. Each entry of the message's metadata becomes a header too, unless
// its name is invalid, or is set or reserved by the runtime.
func (m *TopicMessage) headers(h http.Header) {
	h["Traceparent"] = []string{printable(m.Parent)}
	if m.State != "" {
		h["Tracestate"] = []string{printable(m.State)} // a publisher may set any text
	}
	h[headerPubSub] = []string{m.PubSub}
	if m.Token != "" {
		h[headerAck] = []string{m.Token}
	}
	for name, value := range m.Metadata {
		if !token(name) {
			continue // an invalid name must not prevent the delivery of the message
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if _, own := h[name]; !own && !framing(name) && !headers.PerHop(name) && !headers.FoldsToOurs(name) {
			h[name] = []string{printable(value)}
		}
	}
}

// post sends a body to a path of an HTTP application and reads the answer. A status other than 2xx and 404 is an
// error. An answer that is longer than limit is fault.Corrupt.
func (c *Channel) post(ctx context.Context, path, contentType string, body []byte, limit int64,
	header func(http.Header)) ([]byte, *http.Response, error) {
	path, query, _ := strings.Cut(path, "?")
	r := eventRequest(ctx, http.MethodPost, path, body)
	r.URL.RawQuery = query
	r.Header["Content-Type"] = []string{contentType}
	if header != nil {
		header(r.Header)
	}
	answer, err := c.RoundTrip(r)
	if err != nil {
		return nil, nil, err
	}
	defer finish(answer.Body)
	if answer.StatusCode == http.StatusNotFound {
		return nil, answer, nil
	}
	if !handled(answer.StatusCode) {
		begin, _ := io.ReadAll(io.LimitReader(answer.Body, maxExcerpt+1)) // without a body, the status is the reason
		return nil, nil, &fault.Error{Code: fault.Internal, Op: "appchannel.TakeMessage", Err: &refusal{answer,
			fmt.Sprintf("POST %s answered %d%s", r.URL.Path, answer.StatusCode, excerpt(begin))}}
	}
	out, err := c.bounded(answer.Body, limit)
	return out, answer, err
}

func (c *Channel) bounded(body io.Reader, limit int64) ([]byte, error) {
	out, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, c.unanswered(err)
	}
	if int64(len(out)) > limit {
		return nil, fault.New(fault.Corrupt, "appchannel.TakeMessage",
			fmt.Sprintf("the answer of the application at %s is longer than %d bytes", c.target, limit))
	}
	return out, nil
}

// TopicBatch is several messages of a topic.
type TopicBatch struct {
	Path   string
	PubSub string
	Body   func() ([]byte, error)                // for an HTTP application
	Proto  func() *runtime.TopicEventBulkRequest // for a gRPC application
}

// TakeBatch delivers several messages in one request. It returns the answers by entry id. A message without an answer
// was not handled. known is false if the application has no handler for batches. The errors are those of TakeMessage.
func (c *Channel) TakeBatch(ctx context.Context, b *TopicBatch) (answers map[string]TopicAnswer, known bool,
	err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if g, ok := c.carry.(*grpcCarrier); ok {
		return g.takeBatch(ctx, b)
	}
	request, err := b.Body()
	if err != nil {
		return nil, true, fault.Wrap(err, "appchannel.TakeBatch", "encoding messages")
	}
	body, answer, err := c.post(ctx, b.Path, "application/json", request, maxTopicAnswer, func(h http.Header) {
		h[headerPubSub] = []string{b.PubSub}
	})
	if err != nil {
		return nil, true, err
	}
	if answer.StatusCode == http.StatusNotFound {
		return nil, false, nil
	}
	var said struct {
		Statuses []struct{ EntryID, Status string }
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return nil, true, fault.New(fault.Corrupt, "appchannel.TakeBatch",
			"the answer of the application is no list of statuses")
	}
	answers = make(map[string]TopicAnswer, len(said.Statuses))
	for _, s := range said.Statuses {
		answers[s.EntryID] = topicAnswer(s.Status, TopicRetry)
	}
	return answers, true, nil
}

// Subscriptions requests the subscriptions of the application with the id app. The first result is the JSON of an HTTP
// application, and the second is the message of a gRPC application. The unused result is nil. If the application has no
// subscriptions, both results are nil.
//
// The errors are those of RoundTrip, fault.Internal if the application reports a failure, and fault.Corrupt if its JSON
// is too long.
func (c *Channel) Subscriptions(ctx context.Context, app string) ([]byte, *runtime.ListTopicSubscriptionsResponse,
	error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if g, ok := c.carry.(*grpcCarrier); ok {
		list, err := g.subscriptions(ctx)
		return nil, list, err
	}
	r := eventRequest(ctx, http.MethodGet, "/dapr/subscribe", nil)
	r.Header["Dapr-App-Id"] = []string{app}
	answer, err := c.RoundTrip(r)
	if err != nil {
		return nil, nil, err
	}
	defer finish(answer.Body)
	switch status := answer.StatusCode; {
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed, status == http.StatusNotImplemented:
		return nil, nil, nil // the last two are the answers of servers without a handler for GET
	case !handled(status):
		return nil, nil, fault.New(fault.Internal, "appchannel.Subscriptions",
			fmt.Sprintf("GET /dapr/subscribe answered %d", answer.StatusCode))
	}
	body, err := c.bounded(answer.Body, maxSubscriptions)
	return bytes.TrimSpace(body), nil, err
}

func (g *grpcCarrier) subscriptions(ctx context.Context) (out *runtime.ListTopicSubscriptionsResponse, err error) {
	err = g.call(ctx, func(ctx context.Context, o ...grpc.CallOption) (err error) {
		out, err = g.app.ListTopicSubscriptions(ctx, &emptypb.Empty{}, o...)
		return err
	})
	switch {
	case err == nil:
		return out, nil
	case unimplemented(err):
		return nil, nil
	}
	return nil, answered(err, func(s *status.Status) error {
		return fault.New(fault.Internal, "appchannel.Subscriptions",
			"ListTopicSubscriptions answered "+s.Code().String()+": "+s.Message())
	})
}

// unimplemented reports whether the application itself answered that it has no such method.
func unimplemented(err error) bool {
	_, ours := fault.As(err)
	return !ours && status.Code(err) == codes.Unimplemented
}

func (g *grpcCarrier) takeMessage(ctx context.Context, m *TopicMessage) (TopicAnswer, error) {
	var out *runtime.TopicEventResponse
	err := g.call(m.outgoing(ctx), func(ctx context.Context, o ...grpc.CallOption) (err error) {
		out, err = g.app.OnTopicEvent(ctx, m.Proto(), o...)
		return err
	})
	switch {
	case unimplemented(err):
		return TopicUnknown, nil
	case err != nil:
		return TopicRetry, g.refused("OnTopicEvent", err)
	}
	return protoAnswer(out.GetStatus()), nil
}

func protoAnswer(s runtime.TopicEventResponse_TopicEventResponseStatus) TopicAnswer {
	switch s {
	case runtime.TopicEventResponse_SUCCESS:
		return TopicSuccess
	case runtime.TopicEventResponse_DROP:
		return TopicDrop
	}
	return TopicRetry
}

// outgoing adds the metadata of the message and its trace to a call.
func (m *TopicMessage) outgoing(ctx context.Context) context.Context {
	h := http.Header{}
	m.headers(h)
	delete(h, headerPubSub) // the gRPC message has this field
	md := metadata.MD{}
	for name, values := range h {
		key := strings.ToLower(name)
		if key == "content-type" || !settable(key) {
			continue
		}
		md[key] = values
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// refused returns the error of a call that the application answered with a failure.
func (g *grpcCarrier) refused(method string, err error) error {
	return answered(err, func(s *status.Status) error {
		header := http.Header{"Grpc-Status": {strconv.Itoa(int(s.Code()))}}
		return &fault.Error{Code: fault.Internal, Op: "appchannel.TakeMessage", Err: &refusal{
			&http.Response{Status: s.Code().String(), StatusCode: http.StatusInternalServerError, Header: header},
			method + " answered " + s.Code().String() + excerpt([]byte(s.Message()))}}
	})
}

func (g *grpcCarrier) takeBatch(ctx context.Context, b *TopicBatch) (map[string]TopicAnswer, bool, error) {
	var out *runtime.TopicEventBulkResponse
	in := b.Proto()
	err := g.call(ctx, func(ctx context.Context, o ...grpc.CallOption) (err error) {
		out, err = g.app.OnBulkTopicEvent(ctx, in, o...)
		return err
	})
	if unimplemented(err) {
		err = g.call(ctx, func(ctx context.Context, o ...grpc.CallOption) (err error) {
			//lint:ignore SA1019 applications made with older SDKs serve only this name
			out, err = runtime.NewAppCallbackAlphaClient(g.conns).OnBulkTopicEventAlpha1(ctx, in, o...)
			return err
		})
	}
	switch {
	case unimplemented(err):
		return nil, false, nil
	case err != nil:
		return nil, true, g.refused("OnBulkTopicEvent", err)
	}
	answers := make(map[string]TopicAnswer, len(out.GetStatuses()))
	for _, s := range out.GetStatuses() {
		answers[s.GetEntryId()] = protoAnswer(s.GetStatus())
	}
	return answers, true, nil
}
