// The schema registry of the tests: the REST API of Confluent's, kept in memory, with or without a login and a base path.
package main

import (
	"flag"
	"log"
	"net/http"
	"strings"

	"github.com/twmb/franz-go/pkg/sr/srfake"
)

func main() {
	address := flag.String("address", "127.0.0.1:0", "host and port to listen on")
	authorization := flag.String("authorization", "", "the Authorization header that every request must have")
	base := flag.String("base", "", "a path in front of the API, as Apicurio has one")
	flag.Parse()

	var options []srfake.Option
	if *authorization != "" {
		options = append(options, srfake.WithAuth(*authorization))
	}
	registry := srfake.NewRegistry(options...)
	var handler http.Handler = registry.Handler()
	if path := strings.TrimRight(*base, "/"); path != "" {
		handler = http.StripPrefix(path, handler)
	}
	log.Fatal(http.ListenAndServe(*address, handler))
}
