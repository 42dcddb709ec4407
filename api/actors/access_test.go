package actors_test

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/component"
)

func TestAccess_LocalCallerIsInTheTrustDomainOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1)
		defer w.close()
		access := invoke.NewAccess(&component.AccessControl{DefaultAction: component.Allow, TrustDomain: "corp",
			Policies: []component.AccessPolicy{{AppID: "web", Namespace: "default", TrustDomain: "corp",
				DefaultAction: component.Deny}}}, false)
		n := w.join(func(o *actors.Options) { o.Allow = access.Allow })
		for caller, denied := range map[string]bool{"web": true, "shop": false} {
			_, err := n.runtime.Do(t.Context(), &actors.Call{Actor: api.Actor{Type: "T", ID: "1"}, Method: "m",
				Verb: http.MethodPost, Header: http.Header{}, Caller: invoke.Caller{App: api.App{ID: caller}}})
			if (err != nil) != denied || denied && api.AsError(err).Kind != api.Denied {
				t.Errorf("%s: %v", caller, err)
			}
		}
	})
}
