package api_test

import (
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

func TestTokens_CanBeReplacedNotAddedOrRemoved(t *testing.T) {
	with, err := api.NewTokens([]string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tokens := range map[string][]string{"none": nil, "an empty one": {"b", ""}} {
		if err := with.Set(tokens); !fault.Is(err, fault.Invalid) || !with.Accept("a") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := with.Set([]string{"b", "c"}); err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]bool{"a": false, "b": true, "c": true, "": false} {
		if got := with.Accept(token); got != want {
			t.Errorf("token %q: %v", token, got)
		}
	}
	without, err := api.NewTokens(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, open := range []*api.Tokens{without, nil} {
		if err := open.Set([]string{"a"}); !fault.Is(err, fault.Invalid) || open.Required() || !open.Accept("") {
			t.Errorf("%v, %v", err, open.Required())
		}
	}
}

func TestTokens_EmptyIsRefused(t *testing.T) {
	if _, err := api.NewTokens([]string{"a", ""}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}
