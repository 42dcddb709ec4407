package remoteinvoke_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testv1 "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/internal/appchannel"
)

// forged returns names of headers with which a caller or an application could impersonate the runtime.
func forged() []string {
	return []string{
		"dapr_caller_app_id", "Dapr-Caller_App-Id", "dapr.caller.app.id", "dapr_caller_namespace",
		"dapr_callee_app_id", "dapr_api_token", "dapr_app_id", "Quorate_Session",
		"quorate.caller", "Transfer_Encoding", "Content_Length", "x_forwarded_for", "Quorate-Caller", "Quorate-Fault",
	}
}

// folded returns the name by which a CGI program reads a header.
func folded(name string) string {
	return "HTTP_" + strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(name))
}

// forgeries returns the names of the fields with the value "forged", as a CGI program reads these names.
func forgeries(fields http.Header) (out []string) {
	for name, values := range fields {
		if slices.Contains(values, "forged") {
			out = append(out, folded(name))
		}
	}
	return out
}

func exchange(t *testing.T, n *node, text string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", n.api.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func lines(names []string) (text string) {
	for _, name := range names {
		text += name + ": forged\r\n"
	}
	return text
}

// speakers starts an application that speaks HTTP/1.1 and one that speaks HTTP/2. For each of them, it calls run with
// the node of the application and with another node.
func speakers(t *testing.T, h http.HandlerFunc, run func(t *testing.T, from *node)) {
	for _, protocol := range []appchannel.Protocol{appchannel.HTTP, appchannel.H2C} {
		t.Run(string(protocol), func(t *testing.T) {
			s := httptest.NewUnstartedServer(h)
			s.Config.ErrorLog = log.New(io.Discard, "", 0) // net/http logs the trailers that it does not send
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetHTTP1(true)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
			t.Cleanup(s.Close)
			w := newWorld(t)
			b := w.start("b", "web", s.Listener.Addr().String(), func(o *appchannel.Options) { o.Protocol = protocol })
			a := w.start("a", "shop", "", nil)
			for name, from := range map[string]*node{"at its node": b, "at another": a} {
				t.Run(name, func(t *testing.T) { run(t, from) })
			}
		})
	}
}

func TestHeaders_NamesThatFoldToOursAreDropped(t *testing.T) {
	got := make(chan http.Header, 1)
	speakers(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		for _, name := range forged() {
			w.Header()[name] = []string{"forged"}
		}
		w.Header()["X_Key"] = []string{"kept"}
	}, func(t *testing.T, from *node) {
		answer := exchange(t, from, "GET /v1.0/invoke/web/method/x HTTP/1.1\r\nHost: localhost\r\nConnection: "+
			"close\r\nX_Key: kept\r\n"+lines(forged())+"\r\n")
		body(t, answer)
		h := <-got
		if out := forgeries(h); len(out) > 0 || h.Get("X_key") != "kept" {
			t.Errorf("the application reads %v of %v", out, h)
		}
		if out := forgeries(answer.Header); len(out) > 0 || answer.Header.Get("X_Key") != "kept" {
			t.Errorf("the caller reads %v of %v", out, answer.Header)
		}
	})
}

// badTrailers returns the names of trailers that must be dropped: those of forged, and others that are not allowed in
// trailers.
func badTrailers() []string {
	return append(forged(), "Dapr-Caller-App-Id", "Dapr-Caller-Namespace", "Dapr-Api-Token", "Quorate-Session",
		"Connection", "Keep-Alive", "Upgrade", "Proxy-Authorization", "X-Hop",
		"Content-Type", "Authorization", "Cookie", "Set-Cookie", "Traceparent", "X-Forwarded-For", "Forwarded")
}

func TestTrailers_OfClientsAreFilteredLikeHeaders(t *testing.T) {
	got := make(chan http.Header, 1)
	speakers(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer
	}, func(t *testing.T, from *node) {
		for name, announced := range map[string]string{"announced": "X-Sum, Dapr-Caller-App-Id, " +
			"Dapr_Caller_App_Id, X-Hop, Quorate-Caller", "one announced": "X-Sum",
			"bad ones announced": "Dapr-Caller-App-Id"} {
			for _, verb := range []string{"POST", "GET"} {
				answer := exchange(t, from, verb+" /v1.0/invoke/web/method/x HTTP/1.1\r\nHost: "+
					"localhost\r\nConnection: close, X-Hop\r\nTransfer-Encoding: chunked\r\nTrailer: "+
					announced+"\r\n\r\n"+
					"4\r\ntext\r\n0\r\nX-Sum: 42\r\n"+lines(badTrailers())+"\r\n")
				body(t, answer)
				trailer := <-got
				if out := forgeries(trailer); len(out) > 0 || strings.Contains(announced, "X-Sum") &&
					trailer.Get("X-Sum") != "42" {
					t.Errorf("%s, %s: the application reads %v of %v", name, verb, out, trailer)
				}
				for name := range trailer {
					if name != "X-Sum" {
						t.Errorf("the trailer %s was announced to the application", name)
					}
				}
			}
		}
	})
}

func TestTrailers_OfApplicationsAreFilteredLikeHeaders(t *testing.T) {
	speakers(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["Connection"] = []string{"X-Hop"}
		if r.URL.Path == "/announced" {
			h["Trailer"] = []string{"X-Sum, Quorate-Session, Dapr-Caller-App-Id, Quorate_Session"}
		}
		_, _ = io.WriteString(w, "text")
		_ = http.NewResponseController(w).Flush()
		h[http.TrailerPrefix+"X-Sum"] = []string{"42"}
		for _, name := range badTrailers() {
			if r.ProtoMajor == 2 && slices.Contains([]string{"Connection", "Keep-Alive", "Upgrade", "X-Hop"}, name) {
				continue // HTTP/2 has no hop-by-hop headers
			}
			h[http.TrailerPrefix+name] = []string{"forged"}
		}
	}, func(t *testing.T, from *node) {
		for _, path := range []string{"announced", "unannounced"} {
			answer := exchange(t, from, "GET /v1.0/invoke/web/method/"+path+" HTTP/1.1\r\nHost: "+
				"localhost\r\nConnection: close\r\n\r\n")
			early := fmt.Sprint(answer.Trailer)
			if got := body(t, answer); got != "text" || answer.Trailer.Get("X-Sum") != "42" ||
				len(answer.Trailer) != 1 {
				t.Errorf("%s: %q, announced %s, trailers %v", path, got, early, answer.Trailer)
			}
		}
	})
}

func TestInformational_AnswersHaveNoHeadersOfTheRuntime(t *testing.T) {
	speakers(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Link"] = []string{"</style.css>"}
		for _, name := range forged() {
			w.Header()[name] = []string{"forged"}
		}
		w.WriteHeader(http.StatusEarlyHints)
	}, func(t *testing.T, from *node) {
		conn, err := net.Dial("tcp", from.api.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		fmt.Fprint(conn, "GET /v1.0/invoke/web/method/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		all, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 103") ||
			!strings.Contains(string(all), "Link: </style.css>") || strings.Contains(string(all), "forged") {
			t.Errorf("%v %s", err, all)
		}
	})
}

// An upgrade to another version of HTTP is not forwarded, because the tunnel would carry requests that no access rule
// has checked.
func TestUpgrade_ToHTTPIsNotForwarded(t *testing.T) {
	got := make(chan http.Header, 1)
	a, b := pair(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })
	for _, from := range []*node{a, b} {
		for to, want := range map[string]string{"h2c": "", "H2C": "", "websocket, h2c": "", "HTTP/2.0": "",
			"TLS/1.2": "", "websocket": "websocket"} {
			answer := exchange(t, from, "GET /v1.0/invoke/web/method/x HTTP/1.1\r\nHost: localhost\r\nConnection: "+
				"Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: "+to+"\r\n\r\n")
			body(t, answer)
			if h := <-got; h.Get("Upgrade") != want {
				t.Errorf("%s: the application gets %v", to, h)
			}
		}
	}
}

func TestMetadata_OfGRPCCallsIsFilteredLikeHeaders(t *testing.T) {
	seen := make(chan http.Header, 1)
	w := newWorld(t)
	w.start("b", "web", app(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		for _, name := range forged() {
			w.Header()[name] = []string{"forged"}
		}
		w.Header().Set("X-Key", "kept")
	}), nil)
	a := w.start("a", "shop", "", nil)
	var sent []string
	for _, name := range forged() {
		sent = append(sent, strings.ToLower(name), "forged")
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), append(sent, "x-key", "kept")...)
	var header, trailer metadata.MD
	if _, err := runtimev1.NewDaprClient(a.dial(t, nil)).InvokeService(ctx, invokeService("web", "x", &anypb.Any{}, ""),
		grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
		t.Fatal(err)
	}
	if h := <-seen; len(forgeries(h)) > 0 || h.Get("X-Key") != "kept" {
		t.Errorf("the application reads %v of %v", forgeries(h), h)
	}
	if out := append(forgeries(http.Header(header)), forgeries(http.Header(trailer))...); len(out) > 0 ||
		header.Get("x-key")[0] != "kept" {
		t.Errorf("the caller reads %v of %v, %v", out, header, trailer)
	}
}

// impostor answers calls of its service with header fields that only the runtime may set.
type impostor struct {
	testv1.UnimplementedTestServiceServer
	seen chan metadata.MD
}

func (i *impostor) EmptyCall(ctx context.Context, _ *testv1.Empty) (*testv1.Empty, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	i.seen <- md
	var pairs []string
	for _, name := range forged() {
		pairs = append(pairs, strings.ToLower(name), "forged")
	}
	own := metadata.Pairs(append(pairs, "x-key", "kept", "x-key-bin", "\x00\xff")...)
	_ = grpc.SetHeader(ctx, own)
	_ = grpc.SetTrailer(ctx, own)
	return &testv1.Empty{}, nil
}

func TestMetadata_OfServicesOfApplicationsIsFilteredBothWays(t *testing.T) {
	i := &impostor{seen: make(chan metadata.MD, 1)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	testv1.RegisterTestServiceServer(s, i)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	w := newWorld(t)
	b := w.start("b", "orders", l.Addr().String(), func(o *appchannel.Options) { o.Protocol = appchannel.GRPC })
	a := w.start("a", "shop", "", nil)
	for _, from := range []*node{a, b} {
		var sent []string
		for _, name := range forged() {
			sent = append(sent, strings.ToLower(name), "forged")
		}
		var header, trailer metadata.MD
		_, err := testv1.NewTestServiceClient(from.dial(t, nil)).EmptyCall(to(t, "orders",
			append(sent, "x-key", "kept")...), &testv1.Empty{}, grpc.Header(&header), grpc.Trailer(&trailer))
		if status.Code(err) != codes.OK {
			t.Fatal(err)
		}
		if md := <-i.seen; len(forgeries(http.Header(md))) > 0 || md.Get("x-key")[0] != "kept" {
			t.Errorf("at %s: the application reads %v of %v", from.name, forgeries(http.Header(md)), md)
		}
		for name, md := range map[string]metadata.MD{"header": header, "trailer": trailer} {
			if out := forgeries(http.Header(md)); len(out) > 0 ||
				fmt.Sprint(md.Get("x-key"), md.Get("x-key-bin")) != "[kept] [\x00\xff]" {
				t.Errorf("at %s: the caller reads %v of the %s %v", from.name, out, name, md)
			}
		}
	}
}
