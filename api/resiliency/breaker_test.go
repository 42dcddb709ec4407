package resiliency_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
)

var web = resiliency.Circuit{Target: discovery.App{ID: "web"}, Method: "/x"}

func TestBreakers_CountOnlyFailuresOfTheTarget(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for name, c := range map[string]struct {
		ctx    context.Context
		answer *http.Response
		err    error
		opens  bool
	}{
		"unavailable":                        {t.Context(), nil, fault.New(fault.Unavailable, "", ""), true},
		"no answer":                          {t.Context(), nil, fault.New(fault.Indeterminate, "", ""), true},
		"timeout of the attempt":             {t.Context(), nil, fault.New(fault.Timeout, "", ""), true},
		"other error":                        {t.Context(), nil, errors.New("broken"), true},
		"status 500":                         {t.Context(), &http.Response{StatusCode: 500}, nil, true},
		"status 500, then the caller left":   {gone, &http.Response{StatusCode: 500}, nil, true},
		"status 404":                         {t.Context(), &http.Response{StatusCode: 404}, nil, false},
		"denied":                             {t.Context(), nil, fault.New(fault.Denied, "", ""), false},
		"too large":                          {t.Context(), nil, fault.New(fault.TooLarge, "", ""), false},
		"invalid":                            {t.Context(), nil, fault.New(fault.Invalid, "", ""), false},
		"the caller left before an answer":   {gone, nil, fault.New(fault.Indeterminate, "", ""), false},
		"no answer until the deadline":       {late, nil, fault.New(fault.Indeterminate, "", ""), true},
		"deadline before the request":        {late, nil, fault.New(fault.Timeout, "", ""), false},
		"the caller left before the request": {gone, nil, fault.New(fault.Timeout, "", ""), false},
	} {
		p := &resiliency.Policy{Breaker: &resiliency.Breakers{Settings: resiliency.BreakerSettings{
			Trip: func(c resiliency.BreakerCounts) bool { return c.TotalFailures > 0 }}}}
		end, err := p.Enter(c.ctx, web)
		if err != nil {
			t.Fatal(err)
		}
		end(c.answer, c.err)
		if state := p.Breaker.State(web); (state == "open") != c.opens {
			t.Errorf("%s: the breaker is %s", name, state)
		}
	}
}

func TestBreakers_TripDoesNotSeeCallsThatDoNotCount(t *testing.T) {
	p := &resiliency.Policy{Breaker: &resiliency.Breakers{Settings: resiliency.BreakerSettings{
		Trip: func(c resiliency.BreakerCounts) bool { return c.Requests > 3 }}}}
	for range 10 {
		for _, result := range []error{fault.New(fault.Denied, "", ""), fault.New(fault.Invalid, "", "")} {
			end, err := p.Enter(t.Context(), web)
			if err != nil {
				t.Fatal(err)
			}
			end(nil, result)
		}
	}
	end, err := p.Enter(t.Context(), web)
	if err != nil {
		t.Fatal(err)
	}
	end(nil, fault.New(fault.Unavailable, "", ""))
	if state := p.Breaker.State(web); state != "closed" {
		t.Errorf("after one failure the breaker is %s", state)
	}
}

func TestBreakers_SeparateAddressesOfATarget(t *testing.T) {
	p := &resiliency.Policy{Breaker: &resiliency.Breakers{Settings: resiliency.BreakerSettings{
		Trip: func(c resiliency.BreakerCounts) bool { return c.TotalFailures > 0 }}}}
	at := func(address string) resiliency.Circuit {
		return resiliency.Circuit{Target: discovery.App{ID: "http"}, Address: address, Method: "/x"}
	}
	end, err := p.Enter(t.Context(), at("http://dead.example"))
	if err != nil {
		t.Fatal(err)
	}
	end(nil, fault.New(fault.Unavailable, "", ""))
	if _, err := p.Enter(t.Context(), at("http://dead.example")); !fault.Is(err, fault.Overloaded) {
		t.Error(err)
	}
	if _, err := p.Enter(t.Context(), at("http://live.example")); err != nil {
		t.Error(err)
	}
}
