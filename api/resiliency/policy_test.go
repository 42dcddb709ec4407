package resiliency_test

import (
	"net/http"
	"testing"

	"github.com/quorate/quorate/api/resiliency"
)

func TestPolicy_RetriesListedFailuresOnly(t *testing.T) {
	listed := &resiliency.Policy{Retry: &resiliency.Retry{Statuses: resiliency.StatusSet{{101, 304}, {503, 503}}}}
	all := &resiliency.Policy{Retry: &resiliency.Retry{}}
	for status, want := range map[int]struct{ listed, all bool }{
		101: {}, // an open tunnel
		200: {}, 204: {}, 304: {},
		404: {all: true}, 500: {all: true}, 503: {listed: true, all: true},
	} {
		answer := &http.Response{StatusCode: status, Header: http.Header{}}
		if got := listed.RetryStatus(answer); got != want.listed {
			t.Errorf("%d, listed statuses: %v", status, got)
		}
		if got := all.RetryStatus(answer); got != want.all {
			t.Errorf("%d, all statuses: %v", status, got)
		}
	}
}
