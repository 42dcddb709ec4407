package grpc

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of all other messages
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
)

// keyAppID is the metadata key with the id of the application whose gRPC service is called.
const keyAppID = "dapr-app-id"

// proxy forwards calls of unknown gRPC services to applications. The metadata key dapr-app-id of a call names the
// application. The call becomes an invocation of the method /<service>/<method>, so discovery, load balancing,
// policies, access control and sessions apply. The messages of the stream are forwarded unchanged, one at a time in
// each direction.
func (s *invokeMethods) proxy(_ any, stream grpc.ServerStream) error {
	ctx := stream.Context()
	method, _ := grpc.Method(ctx)
	if strings.HasPrefix(method, ownServices) {
		return status.Error(codes.Unimplemented, "this version of Quorate does not serve "+method)
	}
	target := first(ctx, keyAppID)
	if target == "" || s.invoke == nil {
		return status.Error(codes.Unimplemented,
			"the service of "+method+" is not the runtime's (to call that of an application, name the application "+
				"in the metadata dapr-app-id)")
	}
	answer, err := s.invoke.Do(ctx, &invoke.Call{
		Target: target, Verb: http.MethodPost, Path: invoke.Escape(method), Header: proxyHeader(ctx),
		Body: &messages{stream: stream}, Length: -1, Remote: remote(ctx), Proven: s.proven,
	})
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // the body was read, or is not needed
	if kind := answer.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/grpc") {
		return status.Error(notGRPC(answer.StatusCode),
			fmt.Sprintf("the application %s does not speak gRPC: it answered with HTTP status %d and the type %q",
				target, answer.StatusCode, kind))
	}
	header := answerMetadata(answer.Header)
	if answer.Session != "" && first(ctx, keySession) != "" {
		header.Set(keySession, answer.Session)
	}
	if answer.Header.Get("Grpc-Status") != "" { // an answer without messages has its status in the header
		stream.SetTrailer(header)
		return ended(answer.Header, nil)
	}
	if err := stream.SendHeader(header); err != nil {
		return err
	}
	if err := s.relay(ctx, stream, answer.Body); err != nil {
		return err
	}
	stream.SetTrailer(answerMetadata(answer.Trailer))
	return ended(answer.Trailer, nil)
}

// notGRPC returns the gRPC code for an HTTP answer that is not gRPC.
func notGRPC(code int) codes.Code {
	switch code {
	case http.StatusBadRequest:
		return codes.Internal
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return codes.Unimplemented
	}
	return codes.Unknown
}

// relay forwards the messages of an answer to the client until the answer ends.
func (s *invokeMethods) relay(ctx context.Context, stream grpc.ServerStream, from io.Reader) error {
	var prefix [prefixSize]byte
	for {
		if _, err := io.ReadFull(from, prefix[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return broken(ctx)
		}
		size := binary.BigEndian.Uint32(prefix[1:])
		switch {
		case prefix[0] != 0:
			return status.Error(codes.Internal, "the application compressed a message although it was not requested "+
				"that it may")
		case int64(size) > s.limit:
			return status.Error(codes.ResourceExhausted,
				fmt.Sprintf("a message of the application has %d bytes, the limit is %d (raise --max-body-size)",
					size, s.limit))
		}
		if err := s.relayOne(ctx, stream, from, int(size)); err != nil {
			return err
		}
	}
}

func (s *invokeMethods) relayOne(ctx context.Context, stream grpc.ServerStream, from io.Reader, size int) error {
	m := &frame{}
	out, err := s.answering(ctx, m, size)
	if err != nil {
		return api.AnswerOverloaded(err)
	}
	m.data = make([]byte, size)
	if _, err = io.ReadFull(from, m.data); err != nil {
		err = broken(ctx)
	} else {
		err = stream.SendMsg(out)
	}
	if a, ok := out.(*answer); ok && err != nil {
		a.end()
	}
	return err
}

func broken(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unknown, "the answer of the application was cut short")
}

// proxyHeader returns the metadata of a call as the header of an HTTP request.
func proxyHeader(ctx context.Context) http.Header {
	md, _ := metadata.FromIncomingContext(ctx)
	h := headerOf(md)
	delete(h, "Grpc-Accept-Encoding") // relay does not decompress answers
	delete(h, "Grpc-Trace-Bin")       // the channel to the application adds this field for its own span
	if parent := parentOf(ctx); parent != "" {
		h["Traceparent"] = []string{parent}
	}
	h["Te"] = []string{"trailers"}
	if kind := md.Get("content-type"); len(kind) == 0 || !strings.HasPrefix(kind[0], "application/grpc") {
		h["Content-Type"] = []string{"application/grpc"}
	}
	if end, ok := ctx.Deadline(); ok {
		h["Grpc-Timeout"] = []string{timeoutText(time.Until(end))}
	}
	return h
}

// timeoutText formats a timeout for the header grpc-timeout: at most eight digits and a unit.
func timeoutText(d time.Duration) string {
	const most = 99_999_999
	d = max(d, 0)
	if ms := d.Milliseconds(); ms <= most {
		return strconv.FormatInt(ms, 10) + "m"
	}
	return strconv.FormatInt(min(int64(d/time.Second), most), 10) + "S"
}

func headerOf(md metadata.MD) http.Header {
	h := make(http.Header, len(md)+3)
	for key, values := range md {
		if strings.HasPrefix(key, ":") || key == keyToken || key == "connection" {
			continue
		}
		if strings.HasSuffix(key, "-bin") {
			values = encoded(values)
		}
		h[textproto.CanonicalMIMEHeaderKey(key)] = values
	}
	return h
}

func encoded(values []string) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = base64.RawStdEncoding.EncodeToString([]byte(v))
	}
	return out
}

// answerMetadata converts the headers or trailers of a gRPC answer to metadata. It omits the fields that gRPC
// reserves.
func answerMetadata(h http.Header) metadata.MD {
	md := make(metadata.MD, len(h))
	for name, values := range h {
		key := strings.ToLower(name)
		switch {
		case key == "content-type", key == "content-length", key == "date", strings.HasPrefix(key, "grpc-"):
		case strings.HasSuffix(key, "-bin"):
			for _, v := range values {
				if raw, err := decodeBinary(v); err == nil {
					md[key] = append(md[key], string(raw))
				}
			}
		default:
			md[key] = values
		}
	}
	return md
}

// prefixSize is the size in bytes of the prefix of a gRPC message: one byte for the compression flag, four for the
// length.
const prefixSize = 5

// messages is the body of a request that reads the messages of a client's stream.
type messages struct {
	stream grpc.ServerStream
	rest   []byte // the unread rest of the current message
	count  int    // messages received
}

// Read blocks until a message has arrived or the call has ended.
func (m *messages) Read(b []byte) (int, error) {
	if len(m.rest) == 0 {
		var f frame
		if err := m.stream.RecvMsg(&f); err != nil {
			return 0, err // io.EOF when the client has sent all
		}
		m.count++
		m.rest = append(binary.BigEndian.AppendUint32(make([]byte, 1, prefixSize+len(f.data)), uint32(len(f.data))),
			f.data...)
	}
	n := copy(b, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// Single reports whether at most one message was received. It must not run concurrently with Read.
func (m *messages) Single() bool { return m.count <= 1 }

// Close does nothing: the stream belongs to the handler.
func (m *messages) Close() error { return nil }

// frame is an encoded message that is forwarded without decoding.
type frame struct{ data []byte }

// codec passes frames through and encodes all other messages as protobuf.
type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *frame:
		return mem.BufferSlice{mem.SliceBuffer(v.data)}, nil
	case *answer:
		return v.marshal()
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		f.data = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
