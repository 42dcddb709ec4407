package command_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

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
