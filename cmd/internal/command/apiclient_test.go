package command_test

import (
	"net/http"
	"testing"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

// TestRefusal_Details checks that an error of the API keeps its message, whatever form its details have.
func TestRefusal_Details(t *testing.T) {
	for details, want := range map[string]fault.Code{
		`[{"reason":"conflict"}]`: fault.Conflict,
		`[{"reason":"other"}]`:    fault.Invalid,
		`{"reason":1}`:            fault.Invalid,
		`"text"`:                  fault.Invalid,
		`null`:                    fault.Invalid,
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
