package appchannel

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	common "github.com/dapr/dapr/pkg/proto/common/v1"
	runtime "github.com/dapr/dapr/pkg/proto/runtime/v1"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails" // so that details of the standard types can be decoded
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/headers"
)

// grpcCarrier sends requests as calls of Dapr's gRPC application callback. It buffers the body of a request in memory,
// up to Options.MaxMessage. A request that is itself a gRPC call is streamed to the application's own service instead.
type grpcCarrier struct {
	channel *Channel
	conns   *grpcPool
	raw     *httpCarrier // for gRPC calls to the application's own services
	app     runtime.AppCallbackClient
	health  runtime.AppCallbackHealthCheckClient
}

func newGRPCCarrier(c *Channel) (*grpcCarrier, error) {
	secure, conf := insecure.NewCredentials(), (*tls.Config)(nil)
	if c.opts.Protocol == GRPCS {
		conf = appTLS()
		secure = credentials.NewTLS(conf)
	}
	raw := newHTTPCarrier(c, conf, protocols(false, conf != nil, conf == nil))
	raw.observer = nil // raw carries only gRPC calls, which GRPCClient observes
	options := []grpc.DialOption{grpc.WithTransportCredentials(secure), grpc.WithStatsHandler(sentStats{}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithUserAgent("quorate"),
		grpc.WithMaxHeaderListSize(uint32(min(c.opts.MaxHead, math.MaxUint32))),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(math.MaxInt32),
			grpc.MaxCallRecvMsgSize(c.maxAnswer()))}
	if o := c.opts.Observer; o != nil {
		options = append(options, grpc.WithStatsHandler(o.GRPCClient()))
	}
	conns, err := newGRPCPool(func(idle time.Duration) (*grpc.ClientConn, error) {
		o := options
		if idle > 0 {
			o = append(slices.Clone(o), grpc.WithIdleTimeout(idle))
		}
		return grpc.NewClient("passthrough:///"+c.target, o...)
	})
	if err != nil {
		return nil, fault.Wrap(err, "appchannel.New", "the gRPC client for "+c.target+" cannot be made")
	}
	return &grpcCarrier{channel: c, conns: conns, raw: raw, app: runtime.NewAppCallbackClient(conns),
		health: runtime.NewAppCallbackHealthCheckClient(conns)}, nil
}

// keyTraceBinary is the metadata key of the parent span in the binary form that older gRPC libraries read.
const keyTraceBinary = "grpc-trace-bin"

// maxDetails limits the encoded status of a failure, in bytes, because the status is sent in a header.
const maxDetails = 8 << 10

// overhead is how many bytes an answer may have in addition to its data.
const overhead = 64 << 10

// maxAnswer returns the maximum size of an answer of a gRPC application, in bytes.
func (c *Channel) maxAnswer() int { return int(min(c.opts.MaxMessage+overhead, math.MaxInt32)) }

// tooLong reports whether err means that the answer to a request is longer than maxAnswer. gRPC reports this only in
// the error text. An application that refuses a long request may answer with the same text. Therefore tooLong returns
// false if the request itself is longer than maxAnswer.
func (c *Channel) tooLong(err error, in proto.Message) bool {
	if status.Code(err) != codes.ResourceExhausted || proto.Size(in) > c.maxAnswer() {
		return false
	}
	text := status.Convert(err).Message()
	return text == fmt.Sprintf("grpc: received message after decompression larger than max %d", c.maxAnswer()) ||
		strings.HasPrefix(text, "grpc: received message larger than max (") &&
			strings.HasSuffix(text, fmt.Sprintf(" vs. %d)", c.maxAnswer()))
}

func (g *grpcCarrier) close() error {
	_ = g.raw.close() // this only closes idle connections
	return g.conns.close()
}

// probe calls the health check of the callback service.
func (g *grpcCarrier) probe(ctx context.Context, _ *Channel) error {
	if _, err := g.health.HealthCheck(ctx, &emptypb.Empty{}, grpc.WaitForReady(true)); err != nil {
		return fault.New(fault.Unavailable, "appchannel.probe",
			"HealthCheck answered "+status.Code(err).String()+": "+status.Convert(err).Message())
	}
	return nil
}

// RoundTrip sends r to the application. A gRPC call is forwarded unchanged. Any other request becomes a call of
// OnInvoke. If OnInvoke succeeds, the answer has the HTTP status 200. Otherwise the status is 500, and the body has the
// gRPC code and message.
func (g *grpcCarrier) RoundTrip(r *http.Request) (*http.Response, error) {
	trace := headers.TraceBinary(r.Header.Get("Traceparent"))
	if kind := r.Header["Content-Type"]; len(kind) > 0 && strings.HasPrefix(kind[0], "application/grpc") {
		if trace != nil {
			r.Header["Grpc-Trace-Bin"] = []string{base64.RawStdEncoding.EncodeToString(trace)}
		}
		return g.raw.RoundTrip(r)
	}
	in, err := g.request(r)
	if err != nil {
		return nil, err
	}
	sent := new(atomic.Bool)
	md := ToMetadata(r.Header)
	if trace != nil {
		md[keyTraceBinary] = []string{string(trace)}
	}
	ctx := context.WithValue(metadata.NewOutgoingContext(r.Context(), md), sentKey{}, sent)
	var header, trailer metadata.MD
	out, err := g.app.OnInvoke(ctx, in, grpc.Header(&header), grpc.Trailer(&trailer))
	md = metadata.Join(header, trailer)
	if err != nil {
		if lost := g.lost(r.Context(), sent.Load(), len(md) > 0, err); lost != nil {
			return nil, lost
		}
	}
	release, refused := g.raw.limits.Admit(r.Context(), md)
	if refused != nil {
		return nil, g.channel.unanswered(refused)
	}
	answer := grpcAnswer(r, out, md)
	if err != nil {
		answer = grpcFailure(r, status.Convert(err), md)
	}
	answer.Body = &countedBody{answer.Body, release}
	return answer, nil
}

// countedBody is the body of an answer. Until it is closed, the headers of the answer use acquired memory.
type countedBody struct {
	io.ReadCloser
	release func()
}

// Close closes the body, and releases the memory of the headers.
func (b *countedBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// lost returns the error of a call that the application did not answer. It returns nil if the gRPC error err is the
// application's answer. wasSent is true if the headers of the call were sent, and answered is true if a header or
// trailer came back.
func (g *grpcCarrier) lost(ctx context.Context, wasSent, answered bool, err error) error {
	switch {
	case !wasSent && ctx.Err() != nil:
		return g.channel.givenUp(ctx)
	case !wasSent && status.Code(err) == codes.Internal:
		return g.channel.unsendable(errors.New(status.Convert(err).Message()))
	case !wasSent:
		return g.channel.unreached(fmt.Errorf("gRPC %s: %s", status.Code(err), status.Convert(err).Message()))
	case ctx.Err() != nil:
		return g.channel.unanswered(ctx.Err())
	case status.Code(err) == codes.Unavailable && !answered:
		return g.channel.unanswered(fmt.Errorf("gRPC %s", status.Convert(err).Message()))
	}
	return nil
}

func (g *grpcCarrier) request(r *http.Request) (*common.InvokeRequest, error) {
	var body []byte
	limit := g.channel.opts.MaxMessage
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(io.LimitReader(r.Body, limit+1))
		_ = r.Body.Close() // the body has been read
		if err != nil {
			return nil, &fault.Error{Code: fault.Timeout, Op: "appchannel.Call",
				Msg: "the body of the request did not arrive", Err: rootCause(err)}
		}
	}
	if int64(len(body)) > limit {
		return nil, &fault.Error{Code: fault.TooLarge, Op: "appchannel.Call",
			Msg: fmt.Sprintf("the body is longer than %d bytes, and a gRPC application gets it as one message",
				limit), Hint: "raise --max-body-size at its node"}
	}
	kind, url := MessageTypeOf(r.Header)
	return &common.InvokeRequest{
		Method:      methodOf(r),
		Data:        &anypb.Any{TypeUrl: url, Value: body},
		ContentType: kind,
		HttpExtension: &common.HTTPExtension{Verb: common.HTTPExtension_Verb(
			common.HTTPExtension_Verb_value[strings.ToUpper(r.Method)]), Querystring: r.URL.RawQuery},
	}, nil
}

type methodKey struct{}

// WithMethod returns a copy of r that carries a method name. A gRPC application gets this name instead of the path of
// r.
func WithMethod(r *http.Request, method string) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), methodKey{}, method))
}

func methodOf(r *http.Request) string {
	if method, ok := r.Context().Value(methodKey{}).(string); ok {
		return method
	}
	return strings.TrimPrefix(r.URL.Path, "/")
}

func grpcAnswer(r *http.Request, out *common.InvokeResponse, md metadata.MD) *http.Response {
	h := FromMetadata(md)
	SetMessageType(h, out.GetContentType(), out.GetData().GetTypeUrl())
	return memoryAnswer(r, http.StatusOK, h, out.GetData().GetValue())
}

// grpcFailure returns the HTTP answer for a gRPC error of the application. The body has the usual fields of an API
// error, and those that Dapr clients expect.
func grpcFailure(r *http.Request, s *status.Status, md metadata.MD) *http.Response {
	body, err := json.Marshal(struct {
		ErrorCode string            `json:"errorCode"`
		Message   string            `json:"message"`
		Code      uint32            `json:"code"`
		Status    string            `json:"status"`
		Details   []json.RawMessage `json:"details,omitempty"`
	}{"ERR_DIRECT_INVOKE", s.Message(), uint32(s.Code()), s.Code().String(), grpcDetails(s)})
	if err != nil { // strings, numbers and JSON can always be encoded
		body = []byte(`{"errorCode":"ERR_DIRECT_INVOKE"}`)
	}
	h := FromMetadata(md)
	h["Content-Type"] = []string{"application/json"}
	h["Grpc-Status"] = []string{strconv.Itoa(int(s.Code()))}
	if raw, err := proto.Marshal(s.Proto()); err == nil && len(raw) <= maxDetails {
		h["Grpc-Status-Details-Bin"] = []string{base64.RawStdEncoding.EncodeToString(raw)}
	}
	return memoryAnswer(r, http.StatusInternalServerError, h, body)
}

// grpcDetails returns the details of a gRPC error as JSON. If the message type of a detail is unknown, the JSON
// contains the name of the type, and the bytes in base64.
func grpcDetails(s *status.Status) []json.RawMessage {
	var out []json.RawMessage
	for _, d := range s.Proto().GetDetails() {
		text, err := protojson.Marshal(d)
		if err != nil { // the type of the detail is unknown
			text, err = json.Marshal(struct {
				Type  string `json:"@type"`
				Value []byte `json:"value"`
			}{d.GetTypeUrl(), d.GetValue()})
		}
		if err == nil {
			out = append(out, text)
		}
	}
	return out
}

func memoryAnswer(r *http.Request, code int, h http.Header, body []byte) *http.Response {
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/2.0", ProtoMajor: 2, Header: h,
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)), Request: r}
}

// sentStats is a stats.Handler that records when the headers of a call are sent. From then on, the application may
// have received the call.
type sentStats struct{}

type sentKey struct{}

func (sentStats) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentStats) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}

func (sentStats) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sentStats) HandleConn(context.Context, stats.ConnStats)                       {}
