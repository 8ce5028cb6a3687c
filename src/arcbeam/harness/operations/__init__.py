"""Operations that replace the SDK's data plane: reads and writes of blocks."""
