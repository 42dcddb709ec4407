package builtin

import (
	"context"

	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/middleware"
	"github.com/quorate/quorate/component/middleware/bearer"
	"github.com/quorate/quorate/component/middleware/ratelimit"
	"github.com/quorate/quorate/component/middleware/routeralias"
	"github.com/quorate/quorate/component/middleware/uppercase"
)

func allMiddleware() map[string]loader.MiddlewareFactory {
	return map[string]loader.MiddlewareFactory{
		routeralias.Type: {Fields: routeralias.Fields(), Open: openRouterAlias},
		ratelimit.Type:   {Fields: ratelimit.Fields(), Open: openRateLimit},
		bearer.Type:      {Fields: bearer.Fields(), Open: openBearer},
		uppercase.Type:   {Fields: uppercase.Fields(), Open: openUppercase},
	}
}

func keep() error { return nil }

func openRouterAlias(_ context.Context, c loader.MiddlewareConfig) (middleware.Filter, func() error, error) {
	f, err := routeralias.Open(c.Metadata)
	return f, keep, err
}

func openRateLimit(_ context.Context, c loader.MiddlewareConfig) (middleware.Filter, func() error, error) {
	f, err := ratelimit.Open(c.Metadata, nil)
	return f, keep, err
}

func openUppercase(context.Context, loader.MiddlewareConfig) (middleware.Filter, func() error, error) {
	return uppercase.Upper{}, keep, nil
}

func openBearer(_ context.Context, c loader.MiddlewareConfig) (middleware.Filter, func() error, error) {
	f := bearer.Open(c.Metadata)
	return f, f.Close, nil
}
