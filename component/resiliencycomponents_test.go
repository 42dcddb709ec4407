package component_test

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/component"
)

func resiliency(t *testing.T, targets string) (component.Resiliency, error) {
	t.Helper()
	file, err := component.Parse("r.yaml",
		strings.NewReader("apiVersion: a/v1alpha1\nkind: Resiliency\nmetadata: {name: r}\nspec:\n  policies:\n    "+
			"timeouts: {short: 2s}\n    retries:\n      twice: {policy: constant, duration: 1s, maxRetries: 2}\n  "+
			"targets:\n    components:\n"+targets))
	if err != nil {
		t.Fatal(err)
	}
	return component.ParseResiliency(file.Documents[0])
}

func TestParseResiliency_ComponentDirections(t *testing.T) {
	r, err := resiliency(t, "      partner:\n        outbound: {timeout: short, retry: twice, circuitBreaker: "+
		"cb}\n        inbound: {retry: twice}\n")
	if err != nil {
		t.Fatal(err)
	}
	got := r.Components["partner"]
	if got.Outbound.Timeout != "short" || got.Outbound.Retry != "twice" || got.Inbound.Retry != "twice" ||
		got.Inbound.Timeout != "" {
		t.Errorf("%+v", got)
	}
	if len(r.Unused) != 1 || !strings.Contains(r.Unused[0].String(), "partner.outbound") {
		t.Errorf("%v", r.Unused)
	}
}

func TestParseResiliency_ActorTypes(t *testing.T) {
	r, err := resiliency(t, "      partner: {}\n    actors:\n      Account: {timeout: short, retry: twice, "+
		"circuitBreaker: cb, circuitBreakerScope: id, circuitBreakerCacheSize: 5}\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Actors["Account"]; got.Timeout != "short" || got.Retry != "twice" {
		t.Errorf("%+v", got)
	}
	if len(r.Unused) != 1 || !strings.Contains(r.Unused[0].String(), "Account") {
		t.Errorf("%v", r.Unused)
	}
}

func TestParseResiliency_RefusesUndefinedPolicy(t *testing.T) {
	for targets, want := range map[string]string{
		"      partner: {outbound: {retry: thrice}}\n":                     `partner.outbound names the retry "thrice"`,
		"      partner: {outward: {}}\n":                                   `unknown field "outward"`,
		"      partner: {}\n    actors:\n      Account: {retry: thrice}\n": `actors.Account names the retry "thrice"`,
	} {
		if _, err := resiliency(t, targets); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", targets, err)
		}
	}
}

func TestParseResiliency_ChecksTargetsWithSimilarNames(t *testing.T) {
	_, err := resiliency(t, "      a: {}\n    actors:\n      a: {}\n    apps:\n      a.inbound: {retry: thrice}\n"+
		"      a.outbound: {retry: thrice}\n      actors.a: {retry: thrice}\n")
	for _, target := range []string{"a.inbound", "a.outbound", "actors.a"} {
		if err == nil || !strings.Contains(err.Error(), "the target "+target+` names the retry "thrice"`) {
			t.Errorf("%s: %v", target, err)
		}
	}
}
