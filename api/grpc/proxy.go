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
)

// keyAppID names the application whose service is called.
const keyAppID = "dapr-app-id"

// proxy carries a call of a service that is not the runtime's own to the application that
// the metadata names: as an invocation of the method /<service>/<method> whose body is the
// stream of messages, so that discovery, balancing, policies, access control and session
// are those of every invocation. Messages pass as they are, both ways, one at a time.
func (s *Server) proxy(_ any, stream grpc.ServerStream) error {
	ctx := stream.Context()
	method, _ := grpc.Method(ctx)
	target := first(ctx, keyAppID)
	if target == "" || s.invoke == nil {
		return status.Error(codes.Unimplemented, "the service of "+method+" is not the runtime's (to call that of an application, name the application in the metadata dapr-app-id)")
	}
	answer, err := s.invoke.Do(ctx, &api.Call{
		Target: target, Verb: http.MethodPost, Path: escape(method), Header: proxyHeader(ctx), Body: &messages{stream: stream}, Length: -1, Remote: remote(ctx),
	})
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it was read, or is not wanted
	if kind := answer.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/grpc") {
		return status.Error(notGRPC(answer.StatusCode), fmt.Sprintf("the application %s does not speak gRPC: it answered with HTTP status %d and the type %q", target, answer.StatusCode, kind))
	}
	header := answerMetadata(answer.Header)
	if answer.Session != "" && first(ctx, keySession) != "" {
		header.Set(keySession, answer.Session)
	}
	if answer.Header.Get("Grpc-Status") != "" { // there are neither messages nor trailers
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

// notGRPC is the code for an answer of something else.
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

// relay hands on the messages of an answer until it ends.
func (s *Server) relay(ctx context.Context, stream grpc.ServerStream, from io.Reader) error {
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
			return status.Error(codes.Internal, "the application compressed a message although it was not told that it may")
		case int64(size) > s.limit:
			return status.Error(codes.ResourceExhausted, fmt.Sprintf("a message of the application has %d bytes, the limit is %d (raise --max-body-size)", size, s.limit))
		}
		m := frame{data: make([]byte, size)}
		if _, err := io.ReadFull(from, m.data); err != nil {
			return broken(ctx)
		}
		if err := stream.SendMsg(&m); err != nil {
			return err
		}
	}
}

func broken(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unknown, "the answer of the application was cut short")
}

// proxyHeader is the metadata of a call as the header of a request.
func proxyHeader(ctx context.Context) http.Header {
	md, _ := metadata.FromIncomingContext(ctx)
	h := headerOf(md)
	h["Te"] = []string{"trailers"}
	if kind := md.Get("content-type"); len(kind) == 0 || !strings.HasPrefix(kind[0], "application/grpc") {
		h["Content-Type"] = []string{"application/grpc"}
	}
	if end, ok := ctx.Deadline(); ok {
		h["Grpc-Timeout"] = []string{timeoutText(time.Until(end))}
	}
	return h
}

// timeoutText writes a time-out as gRPC does: at most eight digits, and a unit.
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

// answerMetadata is a header or trailer of a gRPC answer, without what gRPC itself says
// there.
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

// prefixSize is the size of what precedes each message: a flag and the length.
const prefixSize = 5

// messages is the stream of a client's messages as the body of a request.
type messages struct {
	stream grpc.ServerStream
	rest   []byte // of the message in hand
}

// Read blocks until there is a message. The stream ends every Read when its call is over.
func (m *messages) Read(b []byte) (int, error) {
	if len(m.rest) == 0 {
		var f frame
		if err := m.stream.RecvMsg(&f); err != nil {
			return 0, err // io.EOF when the client has sent all
		}
		m.rest = append(binary.BigEndian.AppendUint32(make([]byte, 1, prefixSize+len(f.data)), uint32(len(f.data))), f.data...)
	}
	n := copy(b, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// Close does nothing: the stream belongs to the handler.
func (m *messages) Close() error { return nil }

// frame is a message that is not looked into.
type frame struct{ data []byte }

// codec leaves frames as they are and codes everything else as usual.
type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(f.data)}, nil
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
