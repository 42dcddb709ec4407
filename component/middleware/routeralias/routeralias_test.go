package routeralias_test

import (
	"net/http/httptest"
	"testing"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/middleware/routeralias"
)

func open(t *testing.T, routes string) (*routeralias.Aliases, error) {
	t.Helper()
	v, _, err := component.Metadata{{Name: "routes", Value: routes}}.Check(component.Pos{}, "a", routeralias.Fields())
	if err != nil {
		return nil, err
	}
	return routeralias.Open(v)
}

func TestAliases_Rewrite(t *testing.T) {
	a, err := open(t, `{"/orders": "/v1.0/state/orders?metadata.a=b", "/orders/{id}": "/v1.0/state/orders/{id}",
		"/orders/{id}/{part}": "/v1.0/invoke/{part}/method/of?id={id}", "/orders/all": "/v1.0/metadata"}`)
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]string{
		"/orders":             "/v1.0/state/orders?metadata.a=b",
		"/orders?c=d":         "/v1.0/state/orders?metadata.a=b&c=d",
		"/orders/7?x=%20y":    "/v1.0/state/orders/7?x=%20y",
		"/orders/a%2Fb":       "/v1.0/state/orders/a%2Fb",
		"/orders/all":         "/v1.0/metadata",
		"/orders/a%26b/items": "/v1.0/invoke/items/method/of?id=a%26b",
		"/orders/1/2/3":       "/orders/1/2/3",
		"/other":              "/other",
	} {
		r := httptest.NewRequest("GET", from, nil)
		if err := a.Filter(r); err != nil || r.RequestURI != want || r.URL.RequestURI() != want {
			t.Errorf("%s became %s (%s), %v", from, r.RequestURI, r.URL.RequestURI(), err)
		}
	}
}

func TestAliases_RefuseBadRoutes(t *testing.T) {
	for _, routes := range []string{"[1]", `{"a": "/b"}`, `{"/a": "b"}`, `{"/a/{x}": "/b/{y}"}`} {
		if _, err := open(t, routes); err == nil {
			t.Errorf("%s was taken", routes)
		}
	}
	if a, err := open(t, "/yaml: /v1.0/metadata\n"); err != nil || a == nil {
		t.Errorf("YAML: %v", err)
	}
}
