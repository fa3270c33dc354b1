// The Pub/Sub of the tests: the server that Google's own client tests run against, in a process of its own.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"cloud.google.com/go/pubsub/pstest"
)

func main() {
	address := flag.String("address", "127.0.0.1:0", "host and port to listen on")
	flag.Parse()
	server := pstest.NewServerWithAddress(*address)
	fmt.Println("listening on", server.Addr)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	<-ended
}
