package grpc

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/internal/appchannel"
)

const (
	keyHTTPStatus  = "dapr-http-status" // HTTP status of the application's answer
	keyTraceparent = "traceparent"
	errorText      = 63 // maximum bytes of the application's answer in the details of an error
)

// invokeMethods serves calls to methods and gRPC services of applications.
type invokeMethods struct {
	*core
	invoke *invoke.Service // nil = calls are not served
	proven bool            // every call has a valid API token
}

// InvokeService calls a method of an application, with one request message and one response message. The request
// timeout does not apply, because methods of applications may take any time.
func (s *invokeMethods) InvokeService(ctx context.Context,
	in *runtimev1.InvokeServiceRequest) (*commonv1.InvokeResponse,
	error) {
	if s.invoke == nil {
		return unimplemented{}.InvokeService(ctx, in)
	}
	call, err := decodeCall(ctx, in)
	if err != nil {
		return nil, err
	}
	call.Proven = s.proven
	answer, err := s.invoke.Do(ctx, call)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // the body was read, or is not needed
	body, err := s.readAnswer(ctx, answer.Response)
	if err != nil {
		return nil, err
	}
	md := appchannel.ToMetadata(answer.Header)
	md.Set(keyHTTPStatus, strconv.Itoa(answer.StatusCode))
	if answer.Session != "" && first(ctx, keySession) != "" {
		md.Set(keySession, answer.Session)
	}
	_ = grpc.SetHeader(ctx, md) // fails only outside of a call
	if err := failureOf(answer.Response, body); err != nil {
		return nil, err
	}
	kind, url := appchannel.MessageTypeOf(answer.Header)
	return &commonv1.InvokeResponse{Data: &anypb.Any{TypeUrl: url, Value: body}, ContentType: kind}, nil
}

func decodeCall(ctx context.Context, in *runtimev1.InvokeServiceRequest) (*invoke.Call, error) {
	m := in.GetMessage()
	method, query, mark := strings.Cut(strings.TrimPrefix(m.GetMethod(), "/"), "?")
	if in.GetId() == "" || m == nil {
		return nil, invoke.MethodMissing()
	}
	verb, known := commonv1.HTTPExtension_Verb_name[int32(m.GetHttpExtension().GetVerb())]
	if !known {
		return nil, api.MalformedRequest(fmt.Sprintf("the verb %d is not known", m.GetHttpExtension().GetVerb()))
	}
	if m.GetHttpExtension().GetVerb() == commonv1.HTTPExtension_NONE {
		verb = http.MethodPost
	}
	if more := m.GetHttpExtension().GetQuerystring(); more != "" && query != "" {
		query += "&" + more
	} else if more != "" {
		query = more
	}
	md, _ := metadata.FromIncomingContext(ctx)
	h := appchannel.FromMetadata(md)
	delete(h, "Dapr-Api-Token")
	if parent := parentOf(ctx); parent != "" {
		h["Traceparent"] = []string{parent}
	}
	appchannel.SetMessageType(h, m.GetContentType(), m.GetData().GetTypeUrl())
	data := m.GetData().GetValue()
	return &invoke.Call{Target: in.GetId(), Verb: verb, Text: method, Query: invoke.Escape(query), Mark: mark ||
		query != "",
		Header: h, Body: io.NopCloser(bytes.NewReader(data)), Length: int64(len(data)), Remote: remote(ctx)}, nil
}

// readAnswer reads the body of an application's answer, which must fit into one message. If the body is longer than
// freeAnswer bytes, readAnswer reserves memory before it reads the rest. For a body of unknown length, it doubles the
// reservation whenever the body exceeds it.
func (s *invokeMethods) readAnswer(ctx context.Context, r *http.Response) ([]byte, error) {
	most, next := s.limit, int64(DefaultMaxBodySize)
	if r.ContentLength >= 0 {
		most = min(r.ContentLength, s.limit)
		next = most
	}
	var read bytes.Buffer
	_, err := read.ReadFrom(io.LimitReader(r.Body, freeAnswer+1))
	a, reserved := arrivalOf(ctx), int64(0)
	for a != nil && err == nil && reserved < most && int64(read.Len()) > max(reserved, freeAnswer) {
		if !a.answer.Held() {
			a.answer = s.answers.Share()
		}
		next = min(next, most)
		if err := a.answer.Add(ctx, answerCopies*(next-reserved)); err != nil {
			return nil, api.AnswerOverloaded(err)
		}
		reserved, next = next, 2*next
		_, err = read.ReadFrom(io.LimitReader(r.Body, reserved+1-int64(read.Len())))
	}
	if err == nil {
		_, err = read.ReadFrom(io.LimitReader(r.Body, s.limit+1-int64(read.Len())))
	}
	body := read.Bytes()
	switch {
	case err != nil:
		return nil, status.Error(codes.Unknown, "the answer of the application was cut short")
	case int64(len(body)) > s.limit:
		return nil, status.Error(codes.ResourceExhausted, fmt.Sprintf(
			"the answer of the application is longer than %d bytes, "+
				"and gRPC returns it as one message (raise --max-body-size, or call it over HTTP)", s.limit))
	}
	return body, nil
}

// failureOf returns the gRPC error for an HTTP answer of an application. It returns nil if the status is 2xx.
func failureOf(r *http.Response, body []byte) error {
	if r.StatusCode >= 200 && r.StatusCode <= 299 {
		return nil
	}
	if said := r.Header.Get("Grpc-Status"); said != "" {
		return ended(r.Header, func() string {
			var e struct{ Message string }
			_ = json.Unmarshal(body, &e) // without a valid body, the error has no message
			return e.Message
		})
	}
	text := http.StatusText(r.StatusCode)
	if text == "" {
		text = "HTTP status " + strconv.Itoa(r.StatusCode)
	}
	st, err := status.New(codeOfHTTP(r.StatusCode), text).WithDetails(&errdetails.ErrorInfo{
		Reason: text, Domain: "dapr.io",
		Metadata: map[string]string{"http.code": strconv.Itoa(r.StatusCode), "http.error_message": shortened(body)},
	})
	if err != nil { // cannot happen: the message always marshals
		return status.Error(codeOfHTTP(r.StatusCode), text)
	}
	return st.Err()
}

func shortened(body []byte) string {
	return strings.ToValidUTF8(string(body[:min(len(body), errorText)]), "")
}

// codeOfHTTP returns the gRPC code that Dapr uses for an HTTP status of an application.
func codeOfHTTP(code int) codes.Code {
	switch code {
	case http.StatusBadRequest:
		return codes.Internal
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.NotFound
	case http.StatusRequestTimeout:
		return codes.Canceled
	case http.StatusConflict:
		return codes.AlreadyExists
	case http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case http.StatusNotImplemented:
		return codes.Unimplemented
	case http.StatusServiceUnavailable:
		return codes.Unavailable
	case http.StatusGatewayTimeout:
		return codes.DeadlineExceeded
	}
	return codes.Unknown
}

// ended returns the error of a gRPC call with the given trailers, or nil if their status is OK. If the trailers have no
// status message, the text comes from message, which may be nil.
func ended(h http.Header, message func() string) error {
	n, err := strconv.ParseUint(h.Get("Grpc-Status"), 10, 32)
	if err != nil {
		return status.Error(codes.Unknown, "the application's answer has no valid status")
	}
	if n == 0 {
		return nil
	}
	st := &spb.Status{}
	raw, err := decodeBinary(h.Get("Grpc-Status-Details-Bin"))
	if err != nil || len(raw) == 0 || proto.Unmarshal(raw, st) != nil || st.GetCode() != int32(n) {
		st = &spb.Status{Code: int32(n), Message: unescape(h.Get("Grpc-Message"))}
		if st.Message == "" && message != nil {
			st.Message = message()
		}
	}
	return status.FromProto(st).Err()
}

// decodeBinary reads a value of a -bin field, with or without padding.
func decodeBinary(text string) ([]byte, error) {
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
}

// unescape decodes the percent-encoding of status messages. It keeps invalid escapes as they are.
func unescape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			if c, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}
