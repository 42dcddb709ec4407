package command_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

// TestRefusal_Details checks that an error of the API keeps its message, whatever form its details have.
func TestRefusal_Details(t *testing.T) {
	for details, want := range map[string]fault.Code{
		`[{"reason":"conflict"}]`:      fault.Conflict,
		`[{"reason":"indeterminate"}]`: fault.Indeterminate,
		`[{"reason":"bad_answer"}]`:    fault.Indeterminate,
		`[{"reason":"other"}]`:         fault.Invalid,
		`{"reason":1}`:                 fault.Invalid,
		`"text"`:                       fault.Invalid,
		`null`:                         fault.Invalid,
	} {
		text := `{"errorCode":"ERR_X","message":"it failed","details":` + details + `}`
		err := command.Refusal(http.StatusBadRequest, []byte(text))
		if e, ok := fault.As(err); !ok || e.Code != want || e.Msg != "it failed" {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestCallRefusal_NamesWhoAnswered(t *testing.T) {
	for text, want := range map[string]string{
		`{"errorCode":"ERR_DIRECT_INVOKE","message":"no instance"}`: "no instance",
		`{"message":"of the application"}`:                          "application shop answered with status 404",
		"":                                                          "application shop answered with status 404",
	} {
		if got := fault.Text(command.CallRefusal("shop", http.StatusNotFound, []byte(text))); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// A change whose answer is lost may have been made. The errors of the client must not say that nothing was done.
func TestAPIClient_LostAnswerOfAChangeIsIndeterminate(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/half" {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		}
		panic(http.ErrAbortHandler) // closes the connection
	}))
	c := &command.APIClient{Base: server.URL, Http: server.Client()}
	change := func(path string) error {
		_, err := c.Change(t.Context(), http.MethodPost, path, nil, nil, nil)
		return err
	}
	call := func(method string) func(string) error {
		return func(path string) error {
			_, _, err := c.Call(t.Context(), method, path, nil, nil, 1000)
			return err
		}
	}
	read := func(path string) error {
		_, err := c.Do(t.Context(), http.MethodGet, path, nil, nil, nil)
		return err
	}
	for _, path := range []string{"/none", "/half"} {
		for name, f := range map[string]func(string) error{"change": change, "call": call(http.MethodPost)} {
			if err := f(path); !fault.Is(err, fault.Indeterminate) {
				t.Errorf("%s %s: %v, want %s", name, path, err, fault.Indeterminate)
			}
		}
		for name, f := range map[string]func(string) error{"read": read, "call": call(http.MethodGet)} {
			if err := f(path); err == nil || fault.Is(err, fault.Indeterminate) {
				t.Errorf("%s %s: %v", name, path, err)
			}
		}
	}
	server.Close()
	for name, f := range map[string]func(string) error{"change": change, "call": call(http.MethodPost)} {
		if err := f("/none"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s without a server: %v, want %s", name, err, fault.Unavailable)
		}
	}
}

// A change that could not be sent was certainly not made, whatever the reason is.
func TestAPIClient_UnsentChangeIsNotIndeterminate(t *testing.T) {
	nothing := func(http.ResponseWriter, *http.Request) { t.Error("a request has arrived") }
	plain := httptest.NewServer(http.HandlerFunc(nothing))
	defer plain.Close()
	secured := httptest.NewUnstartedServer(http.HandlerFunc(nothing))
	secured.Config.ErrorLog = log.New(io.Discard, "", 0) // the server logs the handshake that fails
	secured.StartTLS()
	defer secured.Close()
	blocked := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	invalid := http.Header{"X-Value": {"a\nb"}}
	for name, c := range map[string]struct {
		ctx    context.Context
		client command.APIClient
		header http.Header
	}{
		"TLS with a plain server": {t.Context(), command.APIClient{
			Base: "https://" + plain.Listener.Addr().String(), Http: &http.Client{}}, nil},
		"certificate not trusted": {t.Context(), command.APIClient{Base: secured.URL, Http: &http.Client{}}, nil},
		"time-out during the dial": {t.Context(), command.APIClient{Base: plain.URL,
			Http: &http.Client{Transport: blocked, Timeout: time.Millisecond}}, nil},
		"canceled":           {canceled, command.APIClient{Base: plain.URL, Http: &http.Client{}}, nil},
		"unsupported scheme": {t.Context(), command.APIClient{Base: "ftp://127.0.0.1", Http: &http.Client{}}, nil},
		"invalid header":     {t.Context(), command.APIClient{Base: plain.URL, Http: &http.Client{}}, invalid},
	} {
		_, err := c.client.Change(c.ctx, http.MethodPost, "/", nil, c.header, nil)
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: the change returns %v", name, err)
		}
		if _, _, err = c.client.Call(c.ctx, http.MethodPost, "/", c.header, nil, 1000); !fault.Is(err,
			fault.Unavailable) {
			t.Errorf("%s: the call returns %v", name, err)
		}
	}
}
